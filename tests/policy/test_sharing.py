"""Who gets the free places of a worker."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delivery_service.policy.sharing import Want, allowance, share

ENDPOINTS = [f"ep_{number}" for number in range(12)]


def test_allowance() -> None:
    assert allowance(0, 100, 50) == 50
    assert allowance(50, 150, 50) == 0
    assert allowance(30, 40, 50) == 10
    assert allowance(60, 10, 50) == 0
    assert allowance(0, 1, 50) == 1
    assert allowance(0, 0, 50) == 0


def test_f08_k_endpoints_that_never_answer_leave_room() -> None:
    places, cap = 200, 50
    for silent in (1, 3, 5, 20):
        held: Counter[str] = Counter()
        for _ in range(500):
            for number in range(silent):
                free = places - held.total()
                held[f"ep_{number}"] += min(1, allowance(held[f"ep_{number}"], free, cap))
        assert held.total() <= places * silent / (silent + 1) + 1
        assert held.total() < places


def test_more_endpoints_than_an_even_share_leaves_places_for() -> None:
    """Ten places for seven endpoints: the first five must not take them in pairs."""
    lanes = [(f"ep_{number}", 0) for number in range(7)]
    wants, stopped_at = share(lanes, 10, dict.fromkeys(dict(lanes), 50), 1)
    assert {want.endpoint_id for want in wants} == set(dict(lanes))
    assert sum(want.count for want in wants) == 10
    assert stopped_at is None


def test_where_places_run_out_the_next_round_goes_on() -> None:
    lanes = [(f"ep_{number}", 0) for number in range(7)]
    wants, stopped_at = share(lanes, 3, dict.fromkeys(dict(lanes), 50), 1)
    assert wants == [Want("ep_0", 0, 1), Want("ep_1", 0, 1), Want("ep_2", 0, 1)]
    assert stopped_at == "ep_2"


@pytest.mark.parametrize("room", [1, 2, 3, 50])
def test_both_lanes_are_served(room: int) -> None:
    got: Counter[int] = Counter()
    for turn in range(10):
        wants, _ = share([("ep_0", 0), ("ep_0", 1)], 200, {"ep_0": room}, turn)
        assert sum(want.count for want in wants) == room
        for want in wants:
            got[want.lane] += want.count
    assert got[0] == got[1] == 5 * room


LANES = st.lists(
    st.tuples(st.sampled_from(ENDPOINTS), st.sampled_from([0, 1])), unique=True, max_size=24
)
ALLOWANCES = st.fixed_dictionaries({id_: st.integers(0, 60) for id_ in ENDPOINTS})


@settings(max_examples=100)
@given(LANES, st.integers(0, 300), ALLOWANCES, st.integers(0, 100))
def test_shares_are_fair_and_bounded(
    lanes: list[tuple[str, int]], free: int, allowances: dict[str, int], turn: int
) -> None:
    wants, stopped_at = share(lanes, free, allowances, turn)
    got: Counter[str] = Counter()
    for want in wants:
        assert want.count > 0
        assert (want.endpoint_id, want.lane) in lanes
        got[want.endpoint_id] += want.count
    assert len({(want.endpoint_id, want.lane) for want in wants}) == len(wants)
    with_room = {endpoint for endpoint, _ in lanes if allowances[endpoint] > 0}
    assert got.total() <= free
    assert all(got[endpoint] <= allowances[endpoint] for endpoint in got)
    assert set(got) <= with_room
    if free >= len(with_room):
        assert set(got) == with_room
        assert stopped_at is None
    elif free:
        assert len(got) == free
        assert stopped_at == wants[-1].endpoint_id
    # No place is left empty while somebody at the end of the line could have had it.
    if with_room:
        last = list(dict.fromkeys(id_ for id_, _ in lanes if id_ in with_room))[-1]
        if got[last] < allowances[last]:
            assert got.total() == free
