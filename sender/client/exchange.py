"""One call of the API from its first try to its result, without any I/O of its own.

`exchange` is a generator: it yields what to do next, `Send` or `Pause`, and is sent what came of
it. `Client` and `AsyncClient` differ only in how they do these two things.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeAlias, TypeVar

from sender.client.reading import Answer, problem
from sender.client.request import Request
from sender.errors import ApiError, ApiUnreachable, ClientError

T = TypeVar("T")
FIRST_PAUSE = 0.25
"""Seconds before the first repeat; doubles each time."""

PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses that may be over soon (RFC 9110 15.5.9, 15.6; RFC 8470 5.2; RFC 6585 4)."""
NOT_DONE = frozenset({425, 429})
"""Statuses that say that nothing was done, so that any request may be repeated."""
IN_PROGRESS = 409
"""For a request with an idempotency key: an earlier one with that key is still at work
(draft-ietf-httpapi-idempotency-key-header, section 2.7)."""


@dataclass(frozen=True, slots=True)
class Send:
    """A step: send the request, and give up after ``seconds``. Gives `Answer` or `NoAnswer`."""

    request: Request[Any]
    seconds: float


@dataclass(frozen=True, slots=True)
class Pause:
    """A step: wait for ``seconds``."""

    seconds: float


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """What came of a try that had no complete answer. ``may_have_arrived``: whether the service
    may have received the request."""

    reason: str
    may_have_arrived: bool = True


Steps: TypeAlias = Generator[Send | Pause, Any, T]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How long and how often to try. Durations are in seconds.

    ``timeout`` bounds a call with all its tries and pauses, ``try_timeout`` one try, ``max_wait``
    one pause, also one that a ``Retry-After`` asks for. ``retries``: most repeats of a call.
    ``clock`` is monotonic; ``wall_clock`` gives seconds since 1970; ``chance`` a number in [0, 1)
    that spreads the repeats of many clients.
    """

    timeout: float = 30.0
    try_timeout: float = 10.0
    retries: int = 4
    max_wait: float = 10.0
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    chance: Callable[[], float] = random.random

    def __post_init__(self) -> None:
        for name in ("timeout", "try_timeout", "max_wait"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ClientError(f"{name} must be a number of seconds above 0")
        if self.retries < 0:
            raise ClientError("retries must be 0 or more")

    def pause(self, tries: int, asked: float | None) -> float:
        """Return the seconds to wait after so many tries; ``asked`` is what the answer asked."""
        if asked is not None:
            return min(asked, self.max_wait)
        longest = FIRST_PAUSE * 2.0 ** min(tries - 1, 30)
        return min(longest, self.max_wait) * (0.5 + self.chance() / 2)


def exchange(request: Request[T], policy: Policy) -> Steps[T]:
    """Send a request until it succeeds, fails for good, or the time is over.

    Returns its result. Raises `ApiError` or `ApiUnreachable`.
    """
    deadline = policy.clock() + policy.timeout
    may_have_arrived = False
    tries = 0
    left = policy.timeout
    while True:
        outcome: Answer | NoAnswer = yield Send(request, min(policy.try_timeout, left))
        tries += 1
        if isinstance(outcome, Answer) and _is_done(request, outcome, may_have_arrived):
            return request.read(outcome)
        may_have_arrived = may_have_arrived or _may_have_arrived(outcome)
        asked = _asked(outcome, policy)
        error = _error(request, outcome, tries, asked, may_have_arrived)
        wait = policy.pause(tries, asked)
        is_last = tries > policy.retries or not _may_repeat(request, outcome)
        if is_last or wait >= deadline - policy.clock():
            raise error
        yield Pause(wait)
        left = deadline - policy.clock()
        if left <= 0:
            raise error


def _is_done(request: Request[Any], answer: Answer, may_have_arrived: bool) -> bool:
    # What a repeated DELETE does not find was removed by the try whose answer was lost.
    is_gone = request.method == "DELETE" and answer.status == 404 and may_have_arrived
    return answer.is_success or is_gone


def _may_have_arrived(outcome: Answer | NoAnswer) -> bool:
    if isinstance(outcome, NoAnswer):
        return outcome.may_have_arrived
    return outcome.status not in NOT_DONE


def _may_repeat(request: Request[Any], outcome: Answer | NoAnswer) -> bool:
    if request.never_again:
        return False
    if isinstance(outcome, NoAnswer):
        return request.repeatable or not outcome.may_have_arrived
    if request.is_keyed and outcome.status == IN_PROGRESS:
        return True
    return outcome.status in (PASSING if request.repeatable else NOT_DONE)


def _asked(outcome: Answer | NoAnswer, policy: Policy) -> float | None:
    if isinstance(outcome, NoAnswer):
        return None
    # A date is meant by the server's clock, which the answer tells; ours may be off.
    sent = http_date(outcome.headers.get("date", ""))
    now = sent or datetime.fromtimestamp(policy.wall_clock(), UTC)
    return retry_after(outcome.headers.get("retry-after"), now)


def _error(
    request: Request[Any],
    outcome: Answer | NoAnswer,
    tries: int,
    asked: float | None,
    may_have_arrived: bool,
) -> ApiError | ApiUnreachable:
    if isinstance(outcome, Answer):
        return problem(outcome, request.title, retry_after=asked, tries=tries)
    times = f" ({tries} tries)" if tries > 1 else ""
    return ApiUnreachable(
        f"{request.title}: {outcome.reason}{times}", may_have_arrived=may_have_arrived, tries=tries
    )


def retry_after(value: str | None, now: datetime) -> float | None:
    """Return the seconds that a ``Retry-After`` header asks for (RFC 9110 10.2.3), or None for
    nonsense. A date that has passed asks for 0."""
    text = (value or "").strip(" \t")
    if text.isascii() and text.isdigit():
        # Eleven digits are over 317 years, and no float is too small for them.
        return float(text[:11])
    date = http_date(text)
    return None if date is None else max(0.0, (date - now).total_seconds())


def http_date(text: str) -> datetime | None:
    """Return the moment of any of the three forms of HTTP dates (RFC 9110 5.6.7), or None."""
    try:
        date = parsedate_to_datetime(text)
        # The asctime form, and the zone -0000, give none: HTTP dates are in UTC.
        return date.replace(tzinfo=UTC) if date.tzinfo is None else date.astimezone(UTC)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
