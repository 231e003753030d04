"""What follows an attempt: delivered, another attempt after a delay, or dead."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from delivery_service.policy.outcome import Outcome
from wire.schedule import RetrySchedule

GONE = 410
RETRY_AFTER_STATUSES = frozenset({429, 503})
"""RFC 9110 10.2.3 and RFC 6585 4; on other statuses the header means something else."""


@dataclass(frozen=True, slots=True)
class RetryRules:
    """``retry_after_cap``: the longest wait a receiver can ask for. ``jitter``: the largest part
    of a delay that is added to it at random, 0 to 1."""

    retry_after_cap: timedelta = timedelta(hours=1)
    jitter: float = 0.0


@dataclass(frozen=True, slots=True)
class Delivered:
    """The receiver accepted the delivery."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Another attempt after ``delay``, counted from the end of this one."""

    delay: timedelta


@dataclass(frozen=True, slots=True)
class Dead:
    """No further attempt, because of ``reason``."""

    reason: str


Step = Delivered | Retry | Dead


def next_step(
    attempt: int,
    outcome: Outcome,
    schedule: RetrySchedule,
    now: datetime,
    rules: RetryRules,
    chance: float = 0.0,
) -> Step:
    """Decide what follows attempt number ``attempt`` (from 1) of the run through ``schedule``.

    ``chance`` is a random number in [0, 1) for the jitter, which only ever adds to a delay.
    """
    if outcome.delivered:
        return Delivered()
    if outcome.status_code == GONE:
        return Dead("endpoint_gone")
    delay = schedule.delay_after(attempt)
    if delay is None:
        return Dead("schedule_used_up")
    delay += delay * (rules.jitter * chance)
    asked = asked_pause(outcome, now, rules)
    return Retry(delay if asked is None else max(delay, asked))


def asked_pause(outcome: Outcome, now: datetime, rules: RetryRules) -> timedelta | None:
    """The pause that the receiver asked for with ``Retry-After``, within the cap, or None."""
    if outcome.status_code not in RETRY_AFTER_STATUSES or outcome.retry_after is None:
        return None
    asked = parse_retry_after(outcome.retry_after, now)
    return None if asked is None else min(asked, rules.retry_after_cap)


def parse_retry_after(value: str, now: datetime) -> timedelta | None:
    """Read a ``Retry-After`` header: seconds, or one of the three HTTP dates (RFC 9110 5.6.7).

    Returns None for anything else and for dates that have passed. Never raises.
    """
    value = value.strip()
    if value.isascii() and value.isdigit():
        # Eleven digits are over 317 years: more than any cap, and no overflow of timedelta.
        digits = value.lstrip("0")[:11]
        return timedelta(seconds=int(digits)) if digits else None
    try:
        moment = parsedate_to_datetime(value)
        if moment.tzinfo is None:  # the asctime form and the zone "-0000"
            moment = moment.replace(tzinfo=UTC)
        asked = moment - now
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return asked if asked > timedelta() else None
