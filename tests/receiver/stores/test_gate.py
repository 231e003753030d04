"""The gate itself, and the rows of the field's failures that it answers."""

from __future__ import annotations

import asyncio
import warnings

import pytest

from receiver.gate import (
    Claimed,
    Done,
    Gate,
    GateError,
    InProgress,
    Mismatch,
    Parked,
    fingerprint,
    stored_key,
)
from receiver.memory import MemoryStore
from receiver.store import Store
from receiver.testing import FakeClock
from tests.receiver.stores.kinds import ALL

on_every_store = pytest.mark.parametrize("kind", [*ALL, "setnx"])


@on_every_store
async def test_g01_two_identical_requests_at_once_run_one_handler(store: Store) -> None:
    gate, handled = Gate(store), []

    async def request() -> int:
        claim = await gate.claim("dlv_1", fingerprint(b"{}"))
        if not isinstance(claim, Claimed):
            return 200 if isinstance(claim, Done) else 503
        handled.append(1)
        await asyncio.sleep(0)
        await gate.complete("dlv_1", claim.token)
        return 200

    statuses = await asyncio.gather(request(), request())
    assert len(handled) == 1
    assert set(statuses) <= {200, 503}


@on_every_store
async def test_g02_retry_after_a_failed_handler_is_handled(store: Store) -> None:
    gate = Gate(store)
    first = await gate.claim("dlv_1")
    assert isinstance(first, Claimed)
    assert isinstance(await gate.claim("dlv_1"), InProgress), "retryable, not a duplicate"
    assert await gate.release("dlv_1", first.token, ValueError("boom"))
    second = await gate.claim("dlv_1")
    assert isinstance(second, Claimed)
    assert await gate.complete("dlv_1", second.token)
    assert await gate.claim("dlv_1") == Done(None)


@pytest.mark.parametrize("kind", ALL)
async def test_g03_memory_is_longer_than_the_senders_retries(store: Store) -> None:
    clock = FakeClock()
    gate = Gate(store, clock=clock)
    claim = await gate.claim("dlv_1")
    assert isinstance(claim, Claimed)
    await gate.complete("dlv_1", claim.token)
    for later in (300, 3600, 3 * 86_400):
        clock.advance(later)
        assert await gate.claim("dlv_1") == Done(None)
    assert gate.ttl == 7 * 86_400


@pytest.mark.parametrize("kind", ALL)
async def test_g07_replay_at_the_edge_of_a_future_timestamp_is_known(store: Store) -> None:
    """Signed 5 min ahead and replayed 9 min later: still inside twice the tolerance."""
    clock = FakeClock()
    gate = Gate(store, clock=clock)
    claim = await gate.claim("dlv_1")
    assert isinstance(claim, Claimed)
    await gate.complete("dlv_1", claim.token)
    clock.advance(9 * 60)
    assert await gate.claim("dlv_1") == Done(None)


def test_settings_are_checked() -> None:
    for wrong in ({"lease": 0}, {"lease": -1}, {"ttl": 0}, {"max_failures": 0}):
        with pytest.raises(GateError, match=next(iter(wrong))):
            Gate(MemoryStore(), **wrong)  # type: ignore[arg-type]
    gate = Gate(MemoryStore())
    with pytest.raises(GateError, match="lease"):
        gate.claim("a", lease=0)
    with pytest.raises(GateError, match="ttl"):
        gate.complete("a", "t", ttl=0)
    with pytest.raises(GateError, match="key is empty"):
        gate.claim("")


def test_a_call_runs_once() -> None:
    call = Gate(MemoryStore()).claim("a")
    call.run()
    with pytest.raises(GateError, match="has run already"):
        call.run()


def test_a_forgotten_call_warns() -> None:
    gate = Gate(MemoryStore())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gate.complete("a", "t")
    assert "never run" in str(caught[0].message)


async def test_awaiting_a_blocking_store_keeps_the_loop_free(monkeypatch: pytest.MonkeyPatch):
    import threading

    store, seen = MemoryStore(), []
    monkeypatch.setattr(store, "blocking", True, raising=False)
    original = store._claim

    def claim(*arguments):
        seen.append(threading.current_thread())
        return original(*arguments)

    monkeypatch.setattr(store, "_claim", claim)
    assert isinstance(await Gate(store).claim("a"), Claimed)
    assert seen[0] is not threading.current_thread()


def test_odd_keys_are_hashed_and_ordinary_ones_are_not() -> None:
    assert stored_key("surehook:ep:dlv_01") == "surehook:ep:dlv_01"
    odd = ["é", "a\n", "\x7f", "x" * 256, "\ud800", "\U0001f680"]
    assert len({stored_key(key) for key in odd}) == len(odd)
    assert all(stored_key(key).startswith("sha256:") for key in odd)


def test_waiting_ends_with_in_progress_when_the_holder_lives() -> None:
    gate = Gate(MemoryStore())
    gate.claim("a").run()
    assert isinstance(gate.claim("a", wait=0.05).run(), InProgress)


def test_waiting_ends_at_once_when_there_is_nothing_to_wait_for() -> None:
    gate = Gate(MemoryStore(), max_failures=1)
    claim = gate.claim("a", "aa").run()
    assert isinstance(claim, Claimed)
    assert gate.claim("a", "bb", wait=3600).run() == Mismatch("aa")
    gate.release("a", claim.token, "x").run()
    assert gate.claim("a", "aa", wait=3600).run() == Parked(1, "x")


async def test_cancelled_waiting_claims_nothing() -> None:
    gate = Gate(MemoryStore())
    first = gate.claim("a").run()
    assert isinstance(first, Claimed)

    async def wait() -> object:
        return await gate.claim("a", wait=3600)

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await gate.release("a", first.token)
    assert isinstance(await gate.claim("a"), Claimed)
