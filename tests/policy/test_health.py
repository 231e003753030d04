"""An endpoint's circuit, and when failing becomes disabling."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery_service.policy.health import (
    Circuit,
    EndpointHealth,
    HealthRules,
    Signal,
    is_endpoint_level,
    judge,
)
from delivery_service.policy.outcome import Outcome, OutcomeKind

NOW = datetime(2026, 11, 29, 10, 0, 0, tzinfo=UTC)
RULES = HealthRules(
    open_after=3,
    first_pause=timedelta(seconds=30),
    longest_pause=timedelta(minutes=2),
    disable_after=timedelta(days=5),
)
OK = Outcome(OutcomeKind.DELIVERED, status_code=204)
TIMEOUT = Outcome(OutcomeKind.TIMEOUT)
HEALTHY = EndpointHealth()


def status(code: int) -> Outcome:
    return Outcome(OutcomeKind.STATUS, status_code=code)


def opened() -> EndpointHealth:
    health = HEALTHY
    for _ in range(RULES.open_after):
        health = judge(health, TIMEOUT, NOW, RULES).health
    assert health.circuit is Circuit.OPEN
    return health


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (TIMEOUT, True),
        (Outcome(OutcomeKind.DNS), True),
        (Outcome(OutcomeKind.CONNECT), True),
        (Outcome(OutcomeKind.TLS), True),
        (status(500), True),
        (status(503), True),
        (status(599), True),
        (status(429), True),
        (status(400), False),
        (status(401), False),
        (status(404), False),
        (status(410), False),
        (status(413), False),
        (status(600), False),
        (Outcome(OutcomeKind.REDIRECT, status_code=302), False),
        (Outcome(OutcomeKind.PROTOCOL), False),
        (Outcome(OutcomeKind.BLOCKED), False),
        (Outcome(OutcomeKind.INTERNAL), False),
        (OK, False),
    ],
)
def test_endpoint_level(outcome: Outcome, expected: bool) -> None:
    assert is_endpoint_level(outcome) is expected


def test_opens_after_so_many_failures_in_a_row() -> None:
    health = HEALTHY
    for count in (1, 2):
        judged = judge(health, TIMEOUT, NOW, RULES)
        health = judged.health
        assert (judged.signals, health.circuit, health.failures) == ((), Circuit.CLOSED, count)
    judged = judge(health, status(500), NOW, RULES)
    assert judged.signals == (Signal.OPENED,)
    assert judged.health.circuit is Circuit.OPEN
    assert judged.health.paused_until == NOW + timedelta(seconds=30)
    assert judged.health.failing_since == NOW


@pytest.mark.parametrize("between", [OK, status(400), status(404)])
def test_b06_d15_an_answer_in_between_starts_the_row_afresh(between: Outcome) -> None:
    health = HEALTHY
    for _ in range(20):
        for outcome in (TIMEOUT, TIMEOUT, between):
            judged = judge(health, outcome, NOW, RULES)
            health = judged.health
            assert judged.signals == ()
    assert health.circuit is Circuit.CLOSED


def test_b06_client_errors_never_disable() -> None:
    health = HEALTHY
    for day in range(100):
        judged = judge(health, status(400), NOW + timedelta(days=day), RULES)
        health = judged.health
        assert judged.signals == ()
    assert health == HEALTHY


def test_pauses_double_up_to_the_longest() -> None:
    health, now = opened(), NOW
    pauses = []
    for _ in range(40):
        assert health.paused_until is not None
        now = health.paused_until
        judged = judge(health, TIMEOUT, now, RULES, probe=True)
        assert judged.signals == ()
        health = judged.health
        assert health.paused_until is not None
        pauses.append((health.paused_until - now).total_seconds())
    assert pauses[:4] == [60, 120, 120, 120]
    assert set(pauses[2:]) == {120}


def test_late_comers_do_not_lengthen_the_pause() -> None:
    health = opened()
    after = judge(health, TIMEOUT, NOW + timedelta(seconds=5), RULES).health
    assert after.paused_until == health.paused_until
    assert after.pauses == health.pauses


def test_a_success_closes_and_says_so_once() -> None:
    judged = judge(opened(), OK, NOW, RULES, probe=True)
    assert (judged.health, judged.signals) == (HEALTHY, (Signal.RECOVERED,))
    assert judge(judged.health, OK, NOW, RULES).signals == ()
    unwell = judge(HEALTHY, TIMEOUT, NOW, RULES).health
    assert judge(unwell, OK, NOW, RULES).signals == ()


def test_failing_for_too_long_disables() -> None:
    health = judge(HEALTHY, TIMEOUT, NOW, RULES).health
    # Answers that are no success do not end the time of failing.
    health = judge(health, status(400), NOW + timedelta(days=2), RULES).health
    assert health.failing_since == NOW
    almost = NOW + timedelta(days=5) - timedelta(seconds=1)
    assert Signal.DISABLE not in judge(health, TIMEOUT, almost, RULES).signals
    assert judge(health, TIMEOUT, NOW + timedelta(days=5), RULES).signals == (Signal.DISABLE,)
    never = replace(RULES, disable_after=None)
    assert Signal.DISABLE not in judge(health, TIMEOUT, NOW + timedelta(days=50), never).signals
    well = judge(health, OK, NOW + timedelta(days=4), RULES).health
    assert judge(well, TIMEOUT, NOW + timedelta(days=6), RULES).signals == ()


def test_retry_after_pauses_the_endpoint() -> None:
    asked = timedelta(minutes=10)
    judged = judge(HEALTHY, status(429), NOW, RULES, asked)
    assert judged.health.paused_until == NOW + asked
    assert judged.health.circuit is Circuit.CLOSED
    # A shorter pause never shortens a longer one.
    again = judge(judged.health, status(429), NOW, RULES, timedelta(seconds=1))
    assert again.health.paused_until == NOW + asked


@pytest.mark.parametrize("late_comer", [OK, status(400)])
def test_d06_what_was_in_flight_does_not_end_an_asked_pause(late_comer: Outcome) -> None:
    asked = timedelta(minutes=10)
    paused = judge(HEALTHY, status(429), NOW, RULES, asked).health
    after = judge(paused, late_comer, NOW + timedelta(seconds=1), RULES).health
    assert after.paused_until == NOW + asked
    assert after.circuit is Circuit.CLOSED
    assert after.failures == 0


def test_once_a_pause_is_over_an_answer_leaves_nothing_of_it() -> None:
    paused = judge(HEALTHY, status(429), NOW, RULES, timedelta(minutes=10)).health
    assert judge(paused, OK, NOW + timedelta(minutes=10), RULES).health == HEALTHY


OUTCOMES = st.sampled_from(
    [OK, TIMEOUT, status(400), status(429), status(500), Outcome(OutcomeKind.INTERNAL)]
)


@given(
    st.lists(
        st.tuples(OUTCOMES, st.integers(0, 200_000), st.none() | st.integers(0, 600), st.booleans())
    )
)
def test_whatever_comes_health_stays_consistent(
    steps: list[tuple[Outcome, int, int | None, bool]],
) -> None:
    health, now = HEALTHY, NOW
    was_open = False
    for outcome, seconds, asked, probe in steps:
        now += timedelta(seconds=seconds)
        pause = None if asked is None else timedelta(seconds=asked)
        judged = judge(health, outcome, now, RULES, pause, probe=probe)
        health = judged.health
        is_open = health.circuit is Circuit.OPEN
        assert (Signal.OPENED in judged.signals) == (is_open and not was_open)
        if Signal.RECOVERED in judged.signals:
            assert was_open
            assert not is_open
        if is_open:
            assert health.paused_until is not None
            assert health.failures >= RULES.open_after
        if outcome.delivered:
            assert health.failing_since is None
            assert not is_open
        longest = max(RULES.longest_pause, timedelta(seconds=600))
        assert health.paused_until is None or health.paused_until <= now + longest
        was_open = is_open
