"""One polite GET or POST on a feed: Retry-After heeded, passing faults tried again."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from receiver.call import Pause
from receiver.store import Steps
from wire.errors import SurehookError

__all__ = ["FeedError", "fetch", "retry_after"]

MAX_WAIT = 300.0
"""Seconds. A longer Retry-After is cut to this: some providers send milliseconds."""

_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_MAX_DIGITS = 10


class FeedError(SurehookError):
    """A feed can't be read. ``status`` is the HTTP status, or None when there was no answer."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


def fetch(
    client: httpx.Client | httpx.AsyncClient,
    method: str,
    url: str,
    *,
    retries: int,
    **request: Any,
) -> Steps[Any]:
    """The JSON of a 2xx answer (None for an empty one).

    Transport errors and the statuses 408, 425, 429 and 5xx are tried again up to `retries` times,
    after the answer's Retry-After or else after 1, 2, 4, … seconds. Raises `FeedError`.
    """
    pause = 1.0
    while True:
        wait: float | None = None
        try:
            response = yield client.request(method, url, **request)
        except httpx.TransportError as error:
            failure = FeedError(f"{method} {_safe(url)}: {type(error).__name__}: {error}")
        else:
            if response.is_success:
                return _json(response, url)
            status = response.status_code
            failure = FeedError(f"{method} {_safe(url)} answered {status}", status)
            if status not in _TRANSIENT:
                raise failure
            wait = retry_after(response.headers.get("retry-after"), datetime.now(UTC))
        if retries <= 0:
            raise failure
        retries -= 1
        yield Pause(min(pause if wait is None else wait, MAX_WAIT))
        pause = min(pause * 2, 60.0)


def retry_after(value: str | None, now: datetime) -> float | None:
    """Seconds that a ``Retry-After`` header asks for, at most `MAX_WAIT`; None for nonsense.

    Takes seconds in ASCII digits, and the three date forms of HTTP.
    """
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return MAX_WAIT if len(text) > _MAX_DIGITS else min(float(text), MAX_WAIT)
    try:
        date = parsedate_to_datetime(text)
        # The asctime form, and the zone -0000, give a date without a zone: HTTP dates are UTC.
        at = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
        seconds = (at - now).total_seconds()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return min(max(seconds, 0.0), MAX_WAIT)


def _json(response: httpx.Response, url: str) -> Any:
    if not response.content:
        return None
    try:
        return response.json()
    except (ValueError, RecursionError):
        raise FeedError(f"{_safe(url)} did not answer with JSON", response.status_code) from None


def _safe(url: str) -> str:
    # A query or user info may hold a key.
    parts = httpx.URL(url)
    return (
        f"{parts.scheme}://{parts.netloc.decode('ascii', 'replace').rpartition('@')[2]}{parts.path}"
    )
