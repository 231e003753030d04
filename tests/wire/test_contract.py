"""The published contract: what a receiver checks its memory against."""

import contextlib
import json
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire import Contract, RetrySchedule, WireError

CONTRACT = Contract(
    schedule=RetrySchedule.parse("default"),
    replay_window=timedelta(days=7),
    profiles=("standard", "github"),
    postponement=timedelta(hours=1),
    header_prefix="X-Acme-",
)
PUBLISHED = {
    "version": 1,
    "schedule_seconds": [60, 300, 1800, 7200, 21600],
    "max_attempts": 6,
    "horizon_seconds": 30960,
    "replay_window_seconds": 604800,
    "postponement_seconds": 3600,
    "tolerance_seconds": 300,
    "min_dedup_ttl_seconds": 604800 + 30960 + 3600 + 600,
    "profiles": ["standard", "github"],
    "header_prefix": "X-Acme-",
}


def test_g03_g07_the_contract_says_how_long_to_remember_an_id():
    assert CONTRACT.to_dict() == PUBLISHED
    assert CONTRACT.min_dedup_ttl == timedelta(seconds=PUBLISHED["min_dedup_ttl_seconds"])


def test_a_contract_reads_back():
    assert Contract.from_json(json.dumps(PUBLISHED).encode()) == CONTRACT
    assert Contract.from_dict({**PUBLISHED, "new_field": {}}) == CONTRACT
    plain = Contract(RetrySchedule(()), timedelta(0))
    assert Contract.from_dict(plain.to_dict()) == plain


def test_g03_durations_are_rounded_up():
    contract = Contract(RetrySchedule.parse("1500ms"), timedelta(seconds=1))
    assert contract.to_dict()["horizon_seconds"] == 2
    assert contract.to_dict()["min_dedup_ttl_seconds"] == 603


def test_g03_derived_figures_are_not_believed():
    assert Contract.from_dict({**PUBLISHED, "min_dedup_ttl_seconds": 1}) == CONTRACT


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"version": None},
        {"version": True},
        {"version": [1]},
        {"schedule_seconds": None},
        {"schedule_seconds": "1m"},
        {"schedule_seconds": [-1]},
        {"schedule_seconds": [None]},
        {"schedule_seconds": [float("nan")]},
        {"schedule_seconds": [10**400]},
        {"schedule_seconds": [0] * 99},
        {"replay_window_seconds": None},
        {"replay_window_seconds": -1},
        {"replay_window_seconds": 1.5},
        {"replay_window_seconds": 10**30},
        {"replay_window_seconds": True},
        {"tolerance_seconds": "300"},
        {"postponement_seconds": {}},
        {"profiles": []},
        {"profiles": "standard"},
        {"profiles": [1]},
        {"profiles": ["a"] * 99},
        {"profiles": ["a\n"]},
        {"header_prefix": 5},
        {"header_prefix": "x" * 999},
    ],
)
def test_hostile_contracts_are_the_wire_error(changes):
    with pytest.raises(WireError):
        Contract.from_dict({**PUBLISHED, **changes})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"\xff",
        b"[" * 60_000,
        b'{"version":' + b"9" * 5000 + b"}",
        b" " * 70_000,
        b"{}",
    ],
    ids=range(8),
)
def test_hostile_bodies_are_the_wire_error(body):
    with pytest.raises(WireError):
        Contract.from_json(body)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(list(PUBLISHED)), VALUES) | VALUES, st.booleans())
def test_any_object_is_a_contract_or_the_wire_error(given_, filled):
    if filled and isinstance(given_, dict):
        given_ = {**PUBLISHED, **given_}
    with contextlib.suppress(WireError):
        Contract.from_dict(given_)
