"""The engine as a state machine: the real store, a virtual clock and a scripted network.

Hypothesis tries sequences of what people, workers, networks and crashes do, in any order, and
compares the database after every step. ``SUREHOOK_MODEL_EXAMPLES=2000`` searches longer, each
time elsewhere; without it the same sequences are tried every time. ``SUREHOOK_MODEL_SHRINK=1``
looks for the shortest sequence that fails.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from delivery_service.store import deliveries, endpoints
from delivery_service.worker.notices import OPERATOR
from tests.model import invariants
from tests.model.bench import Bench
from tests.model.expected import Delivery, Endpoint
from tests.model.network import OUTCOMES
from tests.model.world import TENANTS, Held, Worker, World
from tests.support.postgres import Postgres

# Shrinking a sequence that fails can take minutes: only where it is asked for.
PHASES = [Phase.generate]
if os.environ.get("SUREHOOK_MODEL_SHRINK") == "1":
    PHASES.append(Phase.shrink)
EXAMPLES = int(os.environ.get("SUREHOOK_MODEL_EXAMPLES", "0"))

picks = st.integers(0, 11)
workers = st.integers(0, 2)
FATES = st.sampled_from(["ok", "ok", "ok", "ok", "rolled back", "unnoticed"])
CHANGES = ["redeliver", "redeliver", "redeliver", "cancel", "retry_now"]
SPANS = st.sampled_from(
    [
        timedelta(seconds=1),
        timedelta(seconds=20),
        timedelta(seconds=61),  # past a lease, the first retry and the first pause
        timedelta(minutes=11),  # past every retry and every Retry-After
        timedelta(hours=1),
        timedelta(hours=3),  # past the overlap of secrets
    ]
)


BENCH: list[Bench] = []
"""The bench in use: hypothesis makes the machines itself and hands them nothing."""


class Engine(RuleBasedStateMachine):
    """What may happen on any database."""

    # No rule has a precondition: what is claimed may depend on the order of ties in the database,
    # and hypothesis takes it for flaky when the rules to choose from do.
    world: World

    @initialize(limits=st.lists(st.sampled_from([None, 0.1]), min_size=3, max_size=3))
    def begin(self, limits: list[float | None]) -> None:
        self.world = BENCH[-1].world()
        for rate, tenant in zip(limits, ("acme", "acme", "globex"), strict=True):
            self.world.add_endpoint(tenant, rate_limit=rate)
        self.world.add_endpoint("acme")
        self.world.add_endpoint(OPERATOR)
        for tenant in TENANTS:
            for _ in range(3):
                self.world.publish(tenant)
            self.world.publish(tenant, commit=False)

    # --- picking ---

    def endpoint(self, pick: int) -> Endpoint:
        known = list(self.world.expected.endpoints.values())
        return known[pick % len(known)]

    def delivery(self, pick: int) -> Delivery:
        known = list(self.world.expected.deliveries.values())
        return known[-1 - pick % len(known)]

    def some(self, wanted: str, worker: int, pick: int) -> tuple[Worker, Held] | None:
        """A worker that has such a claim, ``worker`` or the next, and one of its claims."""
        for offset in range(3):
            chosen = self.world.workers[(worker + offset) % 3]
            found: list[Held] = getattr(chosen, wanted)
            if found:
                return chosen, found[pick % len(found)]
        return None

    # --- people ---

    @rule(tenant=st.sampled_from(TENANTS), count=st.integers(1, 3))
    def publish(self, tenant: str, count: int) -> None:
        for _ in range(count):
            self.world.publish(tenant)

    @rule(
        pick=picks,
        change=st.sampled_from(["enable", "enable", "disable", "rotate", "move", "remove"]),
        sure=st.booleans(),
    )
    def change_endpoint(self, pick: int, change: str, sure: bool) -> None:
        if change != "remove" or sure:
            getattr(self.world, change)(self.endpoint(pick))

    @rule(chosen=st.lists(picks, min_size=1, max_size=3), how=st.sampled_from(CHANGES))
    def change_deliveries(self, chosen: list[int], how: str) -> None:
        found = [self.delivery(pick) for pick in chosen]
        if how == "redeliver":
            ended = [d for d in found if d.status != "pending"]
            self.world.redeliver(ended or found)
        else:
            getattr(self.world, how)(found[0])

    @rule(span=SPANS)
    def advance(self, span: timedelta) -> None:
        self.world.clock.advance(span)

    # --- workers ---

    @rule(worker=workers, fate=FATES)
    def claim(self, worker: int, fate: str) -> None:
        self.world.claim(self.world.workers[worker], fate)

    @rule(worker=workers, pick=picks)
    def start(self, worker: int, pick: int) -> None:
        if found := self.some("unsent", worker, pick):
            self.world.start(*found)

    @rule(worker=workers, pick=picks, outcome=st.sampled_from([*OUTCOMES, "cancelled"]))
    def finish(self, worker: int, pick: int, outcome: str) -> None:
        if found := self.some("in_flight", worker, pick):
            self.world.finish(*found, outcome)

    @rule(
        worker=workers,
        outcomes=st.lists(st.sampled_from(list(OUTCOMES)), min_size=1, max_size=3),
        fate=FATES,
        before=st.sampled_from(["", "", "publish", "redeliver", "rotate"]),
        pick=picks,
    )
    def work(self, worker: int, outcomes: list[str], fate: str, before: str, pick: int) -> None:
        """Claim, and bring what is in hand to its end, all at once."""
        world = self.world
        if before == "publish":
            world.publish(TENANTS[pick % len(TENANTS)])
        elif before == "redeliver":
            ended = [d for d in world.expected.deliveries.values() if d.status != "pending"]
            world.redeliver(ended[-3:])
        elif before == "rotate":
            world.rotate(self.endpoint(pick))
            world.clock.advance(timedelta(hours=3))
        chosen = world.workers[worker]
        world.claim(chosen, "ok")
        for held in chosen.unsent:
            world.start(chosen, held)
        for number, held in enumerate(chosen.in_flight):
            world.finish(chosen, held, outcomes[number % len(outcomes)])
        if chosen.results or chosen.unsure:
            world.record(chosen, 100, fate)

    @rule(worker=workers, fate=st.sampled_from(["ok", "unnoticed"]), span=SPANS)
    def claim_and_send(self, worker: int, fate: str, span: timedelta) -> None:
        """Claim and start to send; then time passes, perhaps with the worker dead."""
        self.world.claim(self.world.workers[worker], fate)
        chosen = self.world.workers[worker]  # another one, if it died
        for held in chosen.unsent:
            self.world.start(chosen, held)
        self.world.clock.advance(span)

    @rule(worker=workers, count=st.integers(1, 8), fate=FATES)
    def record(self, worker: int, count: int, fate: str) -> None:
        chosen = self.world.workers[worker]
        if chosen.results or chosen.unsure:
            self.world.record(chosen, count, fate)

    @rule(worker=workers)
    def record_late(self, worker: int) -> None:
        """Record everything, long after its lease."""
        self.world.clock.advance(timedelta(seconds=61))
        for other in self.world.workers:
            self.world.claim(other, "ok")
        for late in self.world.workers:
            if late.results or late.unsure:
                self.world.record(late, 100, "ok")

    @rule(worker=workers, sure=st.booleans())
    def crash(self, worker: int, sure: bool) -> None:
        if sure:
            self.world.crash(self.world.workers[worker])

    # --- what must hold ---

    @invariant()
    def database_is_as_expected(self) -> None:
        if hasattr(self, "world"):
            self.world.write(invariants.check, self.world.expected)

    def teardown(self) -> None:
        """Whatever happened, a network that recovers lets everything come to an end."""
        if not hasattr(self, "world"):
            return
        try:
            self.come_to_an_end()
        finally:
            for worker in list(self.world.workers):
                self.world.crash(worker)

    def come_to_an_end(self) -> None:
        for worker in list(self.world.workers):
            self.world.crash(worker)
        worker = self.world.workers[0]
        for _ in range(60):
            if all(d.status != "pending" for d in self.world.expected.deliveries.values()):
                break
            self.world.clock.advance(timedelta(minutes=11))
            self.world.claim(worker, "ok")
            for held in worker.unsent:
                self.world.start(worker, held)
                self.world.finish(worker, held, "200")
            while worker.results:
                self.world.record(worker, 100, "ok")
        else:
            raise AssertionError("deliveries are stuck")
        self.database_is_as_expected()


class ConcurrentEngine(Engine):
    """What else may happen where transactions overlap."""

    @rule(one=workers, first_commits=st.booleans())
    def claim_at_once(self, one: int, first_commits: bool) -> None:
        world = self.world
        first, second = world.workers[one], world.workers[(one + 1) % 3]
        mark = world.clock.monotonic()

        async def overlap() -> tuple[Any, Any]:
            async with world.database.engine.connect() as a:
                taken = await a.run_sync(world.take_within, first)
                async with world.database.engine.begin() as b:
                    other = await b.run_sync(world.take_within, second)
                await (a.commit() if first_commits else a.rollback())
            return taken, other

        taken, other = world.run(overlap())
        if first_commits:
            # Neither saw the other's claims: they can be told in either order.
            world.expect_claimed(first, taken, mark)
        world.expect_claimed(second, other, mark)

    @rule(tenant=st.sampled_from(TENANTS), pick=picks, change=st.sampled_from(["off", "delete"]))
    def publish_while_disabling(self, tenant: str, pick: int, change: str) -> None:
        world = self.world
        seen, endpoint = world.matching(tenant), self.endpoint(pick)

        async def overlap() -> str:
            async with world.database.engine.begin() as a:
                event_id = await a.run_sync(world.publish_within, tenant)
                async with world.database.engine.begin() as b:
                    if change == "off":
                        await b.run_sync(endpoints.disable, endpoint.id, "operator", world.now)
                    else:
                        await b.run_sync(endpoints.remove, endpoint.id, world.now)
            return event_id

        event_id = world.run(overlap())
        if change == "delete" and not endpoint.deleted:
            world.expected.deleted(endpoint.id)
        elif change == "off" and endpoint.enabled:
            world.expected.disabled(endpoint.id, "operator")
        world.expect_published(event_id, seen, world.now)

    @rule(pick=picks)
    def redeliver_while_disabling(self, pick: int) -> None:
        world, delivery = self.world, self.delivery(pick)
        endpoint = world.expected.endpoints[delivery.endpoint_id]

        async def overlap() -> list[str]:
            async with world.database.engine.begin() as a:
                done = await a.run_sync(deliveries.redeliver, [delivery.id], world.now)
                async with world.database.engine.begin() as b:
                    await b.run_sync(endpoints.disable, endpoint.id, "operator", world.now)
            return done

        revived = world.expected.redelivered(delivery.id, world.now)
        assert world.run(overlap()) == ([delivery.id] if revived else [])
        if endpoint.enabled:
            state = delivery.status, delivery.reason, delivery.due
            world.expected.disabled(endpoint.id, "operator")
            if revived:  # the disable could not see it; the next claim ends it
                delivery.status, delivery.reason, delivery.due = state


def _run(machine: type[Engine], bench: Bench, examples: int, steps: int) -> None:
    BENCH.append(bench)
    try:
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=EXAMPLES or examples,
                stateful_step_count=steps,
                derandomize=not EXAMPLES,
                database=None,
                phases=PHASES,
                report_multiple_bugs=False,
                deadline=None,
                print_blob=True,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        BENCH.pop()
        bench.close()


def test_engine_model_on_sqlite(memory: Path) -> None:
    bench = Bench(f"sqlite:///{memory / 'model.sqlite3'}")
    _run(Engine, bench, examples=24, steps=50)


def test_engine_model_on_postgresql(postgres: Postgres) -> None:
    name = postgres.create_database()
    bench = Bench(postgres.url(name, "psycopg").replace("+psycopg", ""))
    try:
        _run(ConcurrentEngine, bench, examples=14, steps=50)
    finally:
        postgres.drop(name)
