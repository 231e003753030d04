"""The memory store's bound, and its safety in threads."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor

import pytest

from receiver.gate import Claimed, Done, Gate, GateError, InProgress, Parked, StoreFullError
from receiver.memory import MemoryStore
from receiver.testing import FakeClock


def claimed(gate: Gate, key: str) -> Claimed:
    claim = gate.claim(key).run()
    assert isinstance(claim, Claimed)
    return claim


def done(gate: Gate, key: str) -> None:
    assert gate.complete(key, claimed(gate, key).token).run()


def test_live_claims_failures_and_dead_letters_are_never_forgotten() -> None:
    gate = Gate(MemoryStore(max_entries=3), max_failures=1)
    claimed(gate, "live")
    gate.release("parked", claimed(gate, "parked").token, "x").run()
    gate.release("free", claimed(gate, "free").token).run()
    with pytest.raises(StoreFullError, match="raise max_entries"):
        gate.claim("more").run()
    assert isinstance(gate.claim("live").run(), InProgress)
    assert gate.claim("parked").run() == Parked(1, "x")
    assert claimed(gate, "free").attempts == 1


def test_the_oldest_finished_goes_first_and_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore(max_entries=2)
    gate = Gate(store)
    for key in "abc":
        with caplog.at_level(logging.WARNING):
            done(gate, key)
    assert (len(store), store.evicted) == (2, 1)
    assert "raise max_entries" in caplog.text
    assert gate.claim("b").run() == gate.claim("c").run() == Done(None)


def test_what_is_over_goes_before_what_is_remembered() -> None:
    clock = FakeClock()
    store = MemoryStore(max_entries=3)
    gate = Gate(store, clock=clock, ttl=100)
    claimed(gate, "crashed")
    clock.advance(100)
    done(gate, "a")
    done(gate, "b")
    clock.advance(60)
    done(gate, "c")
    assert store.evicted == 0
    assert gate.claim("a").run() == Done(None)


def test_finished_receipts_do_not_pile_up() -> None:
    clock = FakeClock()
    store = MemoryStore()
    gate = Gate(store, clock=clock, ttl=10)
    for number in range(1000):
        done(gate, str(number))
        clock.advance(1)
    assert len(store) <= 12


def test_threads_have_one_winner_for_each_key() -> None:
    gate = Gate(MemoryStore())
    with ThreadPoolExecutor(16) as threads:
        results = list(threads.map(lambda n: gate.claim(f"k{n % 50}").run(), range(5000)))
    assert sum(isinstance(result, Claimed) for result in results) == 50


def test_size_must_be_above_zero() -> None:
    with pytest.raises(GateError, match="max_entries"):
        MemoryStore(max_entries=0)
