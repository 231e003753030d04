"""Requests as values: what to send, whether it may be repeated, and how to read the answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Generic, TypeVar
from urllib.parse import quote
from uuid import uuid4

from sender.client.reading import Answer, read_page, read_result
from sender.client.results import Page
from sender.errors import ApiError, ClientError
from wire.envelope import encode_json, format_timestamp

T = TypeVar("T")
JSON = "application/json"
LIMIT = 200
"""Items that a page is asked for; the most that the service gives."""
IDEMPOTENCY_KEY = "idempotency-key"
_VISIBLE = re.compile(r"[\x21\x23-\x7e]+")
_PRINTABLE = re.compile(r"[\x20-\x7e]+")

Query = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Request(Generic[T]):
    """One call of the API.

    ``repeatable``: whether a repeat has no further effect, so that it may follow a failure that
    leaves open what happened. ``never_again``: not even after an answer that invites to.
    """

    method: str
    path: str
    read: Callable[[Answer], T]
    query: Query = field(default_factory=dict)
    body: bytes | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = False
    never_again: bool = False

    @property
    def title(self) -> str:
        """What error messages call it: without the query, which may name customers."""
        return f"{self.method} {self.path}"

    @property
    def is_keyed(self) -> bool:
        """Whether it carries an idempotency key."""
        return IDEMPOTENCY_KEY in self.headers


def segment(name: str, value: str) -> str:
    """Return ``value`` as one segment of a path. Raises `ClientError` naming the argument."""
    if not isinstance(value, str) or not value:
        raise ClientError(f"{name} must be a non-empty string")
    try:
        quoted = quote(value, safe="")
    except UnicodeEncodeError:
        raise ClientError(f"{name} contains a lone surrogate, which has no UTF-8") from None
    # Dots alone would be taken for a step up the path, by us or a proxy.
    return quoted if quoted.strip(".") else quoted.replace(".", "%2E")


def get(path: str, result: type[T], query: Mapping[str, Any] | None = None) -> Request[T]:
    """Return the request for one thing."""
    return Request(
        "GET",
        path,
        lambda answer: read_result(result, answer),
        _query(query or {}),
        repeatable=True,
    )


def listed(path: str, item: type[T], query: Mapping[str, Any]) -> Request[Page[T]]:
    """Return the request for the first page of a list, or for that of ``query["cursor"]``."""
    return Request(
        "GET",
        path,
        lambda answer: read_page(item, answer),
        _query({"limit": LIMIT, **query}),
        repeatable=True,
    )


def following(request: Request[Page[T]], page: Page[T]) -> Request[Page[T]] | None:
    """Return the request for the page after ``page``, or None after the last."""
    cursor = page.next_cursor
    if cursor is None:
        return None
    if cursor == request.query.get("cursor"):
        # It would be read for ever.
        raise ApiError(200, "OK", f"{request.title}: the page names itself as the next one")
    return replace(request, query={**request.query, "cursor": cursor})


def send(
    method: str,
    path: str,
    result: type[T],
    members: Mapping[str, Any] | None = None,
    *,
    repeatable: bool = False,
) -> Request[T]:
    """Return a request that changes something; ``members`` are those of its JSON body."""
    body = None if members is None else encode_members(members)
    headers = {} if body is None else {"content-type": JSON}
    return Request(
        method,
        path,
        lambda answer: read_result(result, answer),
        body=body,
        headers=headers,
        repeatable=repeatable,
    )


def delete(path: str) -> Request[None]:
    """Return a request that removes something."""
    return Request("DELETE", path, lambda _answer: None, repeatable=True)


def encode_members(members: Mapping[str, Any]) -> bytes:
    """Return a JSON body. Datetimes become RFC 3339 in UTC. Raises `EnvelopeError`."""
    return b"{%b}" % b",".join(
        b"%b:%b" % (encode_json(name), encode_json(_plain(value), path=name))
        for name, value in members.items()
    )


def choose_key(given: str | None) -> str:
    """Return an idempotency key: a fresh one unless it is ``given``. Raises `ClientError`."""
    if given is None:
        return str(uuid4())
    if not isinstance(given, str) or not 1 <= len(given) <= 256 or not given.isprintable():
        raise ClientError("idempotency_key must be 1 to 256 printable characters")
    return given


def keyed(given: str | None) -> dict[str, str]:
    """Return the ``Idempotency-Key`` header of a request that has no other place for its key.

    Raises `ClientError` for a key that can't stand in a header.
    """
    headers = key_header(choose_key(given))
    if not headers:
        raise ClientError("idempotency_key must be printable ASCII here, to stand in a header")
    return headers


def key_header(key: str) -> dict[str, str]:
    """Return the ``Idempotency-Key`` header for a key, empty if the key can't stand in one."""
    if _VISIBLE.fullmatch(key):
        return {IDEMPOTENCY_KEY: key}
    if _PRINTABLE.fullmatch(key):
        escaped = re.sub(r'(["\\])', r"\\\1", key)
        return {IDEMPOTENCY_KEY: f'"{escaped}"'}
    return {}


def _query(given: Mapping[str, Any]) -> Query:
    return {name: _text(value) for name, value in given.items() if value is not None}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(_plain(value))


def _plain(value: Any) -> Any:
    return format_timestamp(value) if isinstance(value, datetime) else value
