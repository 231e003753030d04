"""The sliding window: never more than the limit in any span of its length."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from delivery_service.policy.windows import SLOTS, admit

START = datetime(2026, 11, 29, 10, tzinfo=UTC)
WINDOW = timedelta(seconds=60)


@given(
    st.lists(st.floats(0, 20), max_size=80),
    st.integers(1, 7),
    st.sampled_from([0.5, 60, 3600]),
)
def test_no_window_holds_more_than_the_limit(gaps: list[float], limit: int, seconds: float) -> None:
    window = timedelta(seconds=seconds)
    state = None
    now = START
    admitted: list[datetime] = []
    for gap in gaps:
        now += timedelta(seconds=gap * seconds / 60)
        decision = admit(state, limit, window, now)
        recent = [at for at in admitted if now - at < window * (1 + 1 / SLOTS)]
        if decision.admitted:
            state = json.loads(json.dumps(decision.state))
            admitted.append(now)
        else:
            assert len(recent) >= limit  # nor was it refused without need
            assert decision.remaining == 0
            wait = timedelta(seconds=decision.reset) + timedelta(milliseconds=1)
            assert admit(state, limit, window, now + wait).admitted
        assert len([at for at in admitted if now - at < window]) <= limit


def test_what_remains_counts_down_and_a_full_window_says_when_it_ends() -> None:
    state = None
    remaining = []
    for _ in range(3):
        decision = admit(state, 3, WINDOW, START)
        state = decision.state
        remaining.append(decision.remaining)
    assert remaining == [2, 1, 0]
    refused = admit(state, 3, WINDOW, START + timedelta(seconds=10))
    assert not refused.admitted
    assert refused.reset == 51  # the rest of the window, and a slot


def test_a_clock_that_is_behind_frees_nothing() -> None:
    state = admit(None, 1, WINDOW, START).state
    assert not admit(state, 1, WINDOW, START - timedelta(hours=1)).admitted


def test_a_lower_limit_counts_at_once_and_another_window_starts_afresh() -> None:
    state = None
    for _ in range(5):
        state = admit(state, 5, WINDOW, START).state
    refused = admit(state, 2, WINDOW, START + timedelta(seconds=1))
    assert (refused.admitted, refused.remaining) == (False, 0)
    assert admit(state, 2, WINDOW * 2, START).admitted
