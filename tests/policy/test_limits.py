"""The rate limit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery_service.policy.limits import grant

NOW = datetime(2026, 11, 29, 10, 0, 0, tzinfo=UTC)


def test_a_fresh_endpoint_has_one_second_of_burst() -> None:
    granted = grant(100, 10.0, None, NOW)
    assert granted.count == 10
    assert granted.next_at == NOW + timedelta(milliseconds=100)
    assert grant(100, 10.0, granted.next_at, NOW).count == 0


def test_slow_rates_grant_one_at_a_time() -> None:
    granted = grant(5, 0.1, None, NOW)
    assert (granted.count, granted.next_at) == (1, NOW + timedelta(seconds=10))
    assert grant(5, 0.1, granted.next_at, NOW + timedelta(seconds=9.9)).count == 0
    assert grant(5, 0.1, granted.next_at, NOW + timedelta(seconds=10)).count == 1


def test_what_is_not_wanted_is_kept_up_to_the_burst() -> None:
    granted = grant(3, 10.0, None, NOW)
    assert granted.count == 3
    assert grant(100, 10.0, granted.next_at, NOW).count == 7
    assert grant(100, 10.0, granted.next_at, NOW + timedelta(hours=1)).count == 10


@pytest.mark.parametrize("rate", [0.01, 1.0, 3.0, 7.5, 50.0, 1000.0])
def test_a_refused_request_may_start_at_the_moment_that_was_named(rate: float) -> None:
    granted = grant(10_000, rate, None, NOW)
    assert granted.next_at > NOW
    assert grant(1, rate, granted.next_at, granted.next_at).count == 1


@given(
    st.floats(0.05, 500),
    st.lists(st.tuples(st.floats(0, 5), st.integers(1, 1000)), min_size=1, max_size=50),
)
def test_never_more_than_the_rate_and_a_burst(rate: float, asks: list[tuple[float, int]]) -> None:
    now, next_at = NOW, None
    granted_at: list[tuple[datetime, int]] = []
    for pause, wanted in asks:
        now += timedelta(seconds=pause)
        granted = grant(wanted, rate, next_at, now)
        assert 0 <= granted.count <= wanted
        next_at = granted.next_at
        granted_at.append((now, granted.count))
    burst = max(1, int(rate))
    for index, (start, _) in enumerate(granted_at):
        total = 0
        for end, count in granted_at[index:]:
            total += count
            window = (end - start).total_seconds()
            # Moments are whole microseconds: an interval is up to half of one too short.
            slack = 1 + total * 1e-6 * rate
            assert total <= burst + window * rate + slack
