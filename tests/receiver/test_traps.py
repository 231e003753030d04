"""The traps of other kits, as whole flows on ours: late workers and dead holders.

A lease without an owner lets a late worker overwrite the newer result and free its key; a waiter on
a dead holder goes on waiting; a dead worker's rows stay claimed for ever. The conformance suite has
this for each store alone (``test_late_worker_is_refused``,
``test_waiter_takes_over_from_a_dead_holder``), and ``test_inbox`` for the inbox
(``test_rows_of_a_killed_worker_are_taken_over``).
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from receiver.answer import Answer
from receiver.gate import Claimed, Done, Gate, InProgress
from receiver.handle import Receiver
from receiver.request import Request
from receiver.store import Store
from receiver.testing import FakeClock
from tests.receiver import samples
from tests.receiver.samples import NOW
from tests.receiver.stores.conftest import mariadb, store, store_url  # noqa: F401 - fixtures

STORES = ("memory", "redis", "redis_async", "sqlite", "postgresql_async", "mariadb")
on_each_store = pytest.mark.parametrize("kind", STORES)


class Server:
    """A receiver, whose handler may be slower than its lease: then another server has its turn."""

    def __init__(self, store: Store) -> None:  # noqa: F811
        self.clock = FakeClock(NOW)
        self.gate = Gate(store, clock=self.clock)
        self.sample = samples.standard()
        self.sample.verifier._clock = lambda: NOW
        self.handled: list[str] = []
        self.key = self.sample.verify().key

    async def answer(self, handler: Any) -> Answer:
        receiver = Receiver(self.sample.verifier, self.gate, handler)
        request = Request(self.sample.headers, self.sample.body, url=self.sample.url)
        return await receiver.process_async(request)

    async def quick(self, _: object) -> str:
        self.handled.append("successor")
        return "newer"


@on_each_store
async def test_late_worker_never_overwrites_the_newer_result(store: Store) -> None:  # noqa: F811
    server = Server(store)

    async def slow(_: object) -> str:
        server.handled.append("late")
        server.clock.advance(server.gate.lease)
        assert (await server.answer(server.quick)).body == b"newer"
        return "older"

    late = await server.answer(slow)
    assert late.status == 409, "it has lost its lease, and must not say that all is well"
    assert (await server.answer(server.quick)).body == b"newer"
    assert server.handled == ["late", "successor"]


@on_each_store
async def test_late_worker_that_fails_never_frees_its_successors_key(
    store: Store,  # noqa: F811
) -> None:
    server = Server(store)
    successor: list[Claimed] = []

    async def slow(_: object) -> None:
        server.clock.advance(server.gate.lease)
        claim = await server.gate.claim(server.key)
        assert isinstance(claim, Claimed)
        successor.append(claim)
        raise RuntimeError("too late and wrong")

    assert (await server.answer(slow)).status == 500
    assert isinstance(await server.gate.claim(server.key), InProgress), "the key was freed"
    assert (await server.answer(server.quick)).status == 409
    assert await server.gate.complete(server.key, successor[0].token, b"newer")
    assert await server.gate.claim(server.key) == Done(b"newer")
    assert server.handled == []


@on_each_store
async def test_waiters_on_a_dead_holder_take_over_when_its_lease_lapses(
    store: Store,  # noqa: F811
) -> None:
    """By the stores' own clocks; one of the waiters gets the claim, the other its answer."""
    gate = Gate(store, lease=0.3)
    dead = await gate.claim("a")
    assert isinstance(dead, Claimed)

    async def wait() -> bytes:
        claim = await gate.claim("a", lease=60, wait=30)
        if isinstance(claim, Claimed):
            assert claim.attempts == 2
            assert await gate.complete("a", claim.token, b"x")
            return b"took over"
        assert isinstance(claim, Done)
        return claim.response or b""

    assert sorted(await asyncio.gather(wait(), wait())) == [b"took over", b"x"]
    assert not await gate.complete("a", dead.token, b"late")
    assert await gate.claim("a") == Done(b"x")
