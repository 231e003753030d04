"""What follows an attempt."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery_service.policy.outcome import Outcome, OutcomeKind
from delivery_service.policy.retry import (
    Dead,
    Delivered,
    Retry,
    RetryRules,
    Step,
    asked_pause,
    next_step,
    parse_retry_after,
)
from wire.schedule import RetrySchedule

NOW = datetime(2026, 11, 29, 10, 0, 0, tzinfo=UTC)
RULES = RetryRules(retry_after_cap=timedelta(hours=1))
DEFAULT = RetrySchedule.parse("default")
FAILURES = [kind for kind in OutcomeKind if kind is not OutcomeKind.DELIVERED]


def failure(status: int | None = 500, retry_after: str | None = None) -> Outcome:
    return Outcome(OutcomeKind.STATUS, status_code=status, retry_after=retry_after)


def step(attempt: int, outcome: Outcome, schedule: Any = DEFAULT, **options: Any) -> Step:
    return next_step(
        attempt, outcome, RetrySchedule.parse(schedule), NOW, options.pop("rules", RULES), **options
    )


def test_d01_n_delays_are_n_plus_one_attempts_at_exactly_those_gaps() -> None:
    gaps = []
    attempt = 1
    while isinstance(after := step(attempt, failure(), "1m,5m,30m,2h"), Retry):
        gaps.append(after.delay)
        attempt += 1
    assert gaps == [timedelta(minutes=m) for m in (1, 5, 30, 120)]
    assert attempt == 5
    assert after == Dead("schedule_used_up")


def test_d02_empty_schedules_and_zeros() -> None:
    assert step(1, failure(), []) == Dead("schedule_used_up")
    zeros = [step(n, failure(), [0, 0, 5]) for n in (1, 2, 3, 4)]
    now, five = Retry(timedelta()), Retry(timedelta(seconds=5))
    assert zeros == [now, now, five, Dead("schedule_used_up")]


@pytest.mark.parametrize("status", [200, 201, 202, 204, 206, 299])
def test_d05_every_2xx_is_delivered(status: int) -> None:
    assert step(1, Outcome(OutcomeKind.DELIVERED, status_code=status)) == Delivered()
    assert step(99, Outcome(OutcomeKind.DELIVERED, status_code=status)) == Delivered()


@pytest.mark.parametrize("kind", FAILURES)
def test_d04_d06_every_kind_of_failure_is_retried(kind: OutcomeKind) -> None:
    assert step(1, Outcome(kind)) == Retry(timedelta(minutes=1))


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 429, 500, 503, 301, 302, 399, 600, 99])
def test_d06_every_status_is_retried_on_schedule(status: int) -> None:
    assert step(2, failure(status)) == Retry(timedelta(minutes=5))


def test_gone_ends_the_delivery() -> None:
    assert step(1, failure(410)) == Dead("endpoint_gone")
    assert step(1, failure(410, retry_after="5")) == Dead("endpoint_gone")


@pytest.mark.parametrize("status", [429, 503])
def test_d06_retry_after_moves_the_next_attempt_later_only(status: int) -> None:
    assert step(1, failure(status, "90")) == Retry(timedelta(seconds=90))
    assert step(1, failure(status, "30")) == Retry(timedelta(minutes=1))
    assert step(6, failure(status, "30")) == Dead("schedule_used_up")


@pytest.mark.parametrize("status", [200, 301, 400, 500, 502, 504])
def test_retry_after_on_other_statuses_is_ignored(status: int) -> None:
    assert asked_pause(failure(status, "90"), NOW, RULES) is None


LATER = NOW + timedelta(minutes=10)
DATES = [
    LATER.strftime("%a, %d %b %Y %H:%M:%S GMT"),
    LATER.strftime("%A, %d-%b-%y %H:%M:%S GMT"),
    LATER.strftime("%a %b %d %H:%M:%S %Y"),
    LATER.strftime("%a, %d %b %Y %H:%M:%S -0000"),
    format_datetime(LATER),
    format_datetime(LATER.astimezone(tz=None)),
]


@pytest.mark.parametrize("text", DATES)
def test_d07_dates_are_read(text: str) -> None:
    assert parse_retry_after(text, NOW) == timedelta(minutes=10)
    assert parse_retry_after(f"  {text} ", NOW) == timedelta(minutes=10)
    assert parse_retry_after(text, LATER) is None
    assert parse_retry_after(text, LATER + timedelta(days=4000)) is None


@pytest.mark.parametrize(
    "text",
    [
        "-1", "+5", "1.5", "1e3", "\uff11\uff12", "\xb2",
        "0x10", "1_000", "", " ", "soon", "nan", "inf",
        "Thu, 99 Foo 2026 99:99:99 GMT", "Sun, 06 Nov 1994 08:49:37 GMT", "Mon,", ",", "0", "000",
        "Sun, 29 Nov 99999 10:00:00 GMT", "Sun, 29 Nov 0000 10:00:00 GMT", "\x00", "5 5", "5,6",
        "Sun, 29 Nov 2026 11:00:00 +9999999999", "9" * 5000 + " Nov 2026 10:00:00",
    ],
)  # fmt: skip
def test_d09_nonsense_is_ignored_and_the_delivery_goes_on(text: str) -> None:
    assert parse_retry_after(text, NOW) is None
    assert step(1, failure(503, text)) == Retry(timedelta(minutes=1))


@pytest.mark.parametrize("text", ["9999999999", "9" * 400, "1800000", "3601", DATES[0]])
def test_d10_d11_what_is_asked_for_is_capped(text: str) -> None:
    cap = timedelta(minutes=7)
    asked = asked_pause(failure(429, text), NOW, RetryRules(retry_after_cap=cap))
    assert asked == cap
    # The cap holds back nothing of the schedule itself.
    assert step(4, failure(429, text), rules=RetryRules(cap)) == Retry(timedelta(hours=2))


def test_leading_zeros_are_only_zeros() -> None:
    assert parse_retry_after("0" * 30 + "120", NOW) == timedelta(minutes=2)


def test_jitter_only_adds() -> None:
    rules = RetryRules(jitter=0.5)
    delays = [step(1, failure(), rules=rules, chance=c) for c in (0.0, 0.5, 0.999)]
    assert delays == [Retry(timedelta(seconds=s)) for s in (60, 75, 89.97)]


@given(st.text(max_size=60) | st.from_regex(r"[A-Za-z]{3},? [0-9 :A-Za-z+-]{0,40}", fullmatch=True))
def test_d07_d09_no_header_whatever_raises(text: str) -> None:
    asked = parse_retry_after(text, NOW)
    assert asked is None or asked >= timedelta()
    pause = asked_pause(failure(429, text), NOW, RULES)
    assert pause is None or timedelta() <= pause <= RULES.retry_after_cap


@given(st.integers(0, 10**30))
def test_seconds_are_seconds_up_to_the_cap(seconds: int) -> None:
    pause = asked_pause(failure(503, str(seconds)), NOW, RULES)
    assert pause == (None if seconds == 0 else min(timedelta(seconds=min(seconds, 3600)), pause))


SCHEDULES = st.lists(st.integers(0, 86_400), max_size=10)


@given(
    SCHEDULES,
    st.integers(1, 20),
    st.sampled_from(FAILURES),
    st.none() | st.integers(100, 999),
    st.none() | st.text(max_size=12) | st.integers().map(str),
    st.floats(0, 1),
    st.floats(0, 1, exclude_max=True),
)
def test_a_failure_is_retried_within_bounds_or_dead(
    delays: list[int],
    attempt: int,
    kind: OutcomeKind,
    status: int | None,
    retry_after: str | None,
    jitter: float,
    chance: float,
) -> None:
    rules = RetryRules(timedelta(hours=1), jitter)
    outcome = Outcome(kind, status_code=status, retry_after=retry_after)
    after = next_step(attempt, outcome, RetrySchedule.parse(delays), NOW, rules, chance)
    if status == 410:
        assert after == Dead("endpoint_gone")
    elif attempt > len(delays):
        assert after == Dead("schedule_used_up")
    else:
        delay = timedelta(seconds=delays[attempt - 1])
        assert isinstance(after, Retry)
        assert delay <= after.delay <= max(delay * 2, rules.retry_after_cap)
