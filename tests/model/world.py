"""The real engine on a real database, driven step by step, beside what is expected of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import Connection, select

from delivery_service.bootstrap import Service
from delivery_service.clock import ManualClock
from delivery_service.net.authentication import Authenticator
from delivery_service.policy.health import HealthRules
from delivery_service.policy.retry import RetryRules
from delivery_service.store import deliveries, endpoints
from delivery_service.store.queue import Claimed
from delivery_service.worker.attempt import Ended, LeaseTime, Result, Sending, gate, make_attempt
from delivery_service.worker.notices import OPERATOR
from delivery_service.worker.record import record
from delivery_service.worker.take import Places, Taken, Turn, take
from delivery_service.worker.targets import Targets
from sender import publish, tables
from tests.model.expected import RETRY_AFTER_CAP, SCHEDULE, Delivery, Endpoint, Expected
from tests.model.invariants import ROUNDING
from tests.model.network import Exchange, ScriptedTransport, answer
from wire import RetrySchedule, generate_secret, sign

T = TypeVar("T")

START = datetime(2026, 11, 29, 10, tzinfo=UTC)
TENANTS = ("acme", "globex")
OVERLAP = timedelta(hours=2)
PREFIX = "X-Webhook-"


class Crash(Exception):
    """The worker dies, or the connection breaks, before the commit."""


@dataclass(eq=False)
class Held:
    """A claim in a worker's hands, and the request once it was started."""

    claimed: Claimed
    time: LeaseTime
    probe: bool
    was_pristine: bool
    serial: int
    task: asyncio.Task[Result] | None = None
    exchange: Exchange | None = None


@dataclass(eq=False)
class Worker:
    """What one worker process has in memory; a crash loses all of it."""

    sending: Sending
    turn: Turn = field(default_factory=Turn)
    held: list[Held] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    unsure: list[Result] = field(default_factory=list)
    """A group whose commit failed, as far as the worker knows: it is recorded again."""
    seen: dict[str, list[tuple[int, str, frozenset[str]]]] = field(default_factory=dict)
    """By endpoint: (serial of the claim, URL, active secrets) as they were at each claim."""

    @property
    def unsent(self) -> list[Held]:
        return [held for held in self.held if held.task is None]

    @property
    def in_flight(self) -> list[Held]:
        return [held for held in self.held if held.task is not None]


class World:
    """Everything that a rule may do. Each method does it to the database and to `expected`."""

    def __init__(self, service: Service, clock: ManualClock, run: Callable[..., Any]) -> None:
        self.service = service
        self.database = service.database
        self.clock = clock
        self._run = run
        self.settings = service.settings
        self.rules = HealthRules(
            open_after=self.settings.circuit_open_after,
            first_pause=self.settings.circuit_first_pause,
            longest_pause=self.settings.circuit_longest_pause,
            disable_after=self.settings.disable_after,
        )
        self.expected = Expected()
        self.workers = [self._worker() for _ in range(3)]
        self.serial = 0
        self.sent: dict[str, tuple[str, bytes]] = {}
        self._events = 0

    @property
    def now(self) -> datetime:
        return self.clock.moment

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._run(work)  # type: ignore[no-any-return]

    def write(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        return self.run(self.database.write(work, *args, **kwargs))

    def _worker(self) -> Worker:
        return Worker(
            Sending(
                transport=ScriptedTransport(),
                authenticator=Authenticator(ScriptedTransport(), self.clock.monotonic),
                targets=Targets(self.settings, self.service.sealer),
                schedule=RetrySchedule(SCHEDULE),
                rules=RetryRules(RETRY_AFTER_CAP),
                header_prefix=PREFIX,
                user_agent="surehook/test",
            )
        )

    # --- what people do ---

    def add_endpoint(self, tenant: str, **values: Any) -> None:
        secret = generate_secret()
        url = f"https://{tenant}.example/{len(self.expected.endpoints)}"
        endpoint_id = self.write(
            endpoints.create,
            {"tenant_id": tenant, "url": url, **values},
            self.service.sealer.seal(secret),
            self.now,
        )
        self.expected.endpoints[endpoint_id] = Endpoint(endpoint_id, tenant, url, {secret: None})

    def publish(self, tenant: str, *, commit: bool = True) -> None:
        seen = self.matching(tenant)

        def work(connection: Connection) -> str:
            event_id = self.publish_within(connection, tenant)
            if not commit:
                raise Crash
            return event_id

        try:
            event_id = self.write(work)
        except Crash:
            return
        self.expect_published(event_id, seen, self.now)

    def matching(self, tenant: str) -> dict[str, bool]:
        """The endpoints that an event published now goes to, and whether each is enabled."""
        all_ = self.expected.endpoints.values()
        return {e.id: e.enabled for e in all_ if e.tenant == tenant and not e.deleted}

    def publish_within(self, connection: Connection, tenant: str) -> str:
        self._events += 1
        data = {"n": self._events}
        return publish(
            connection, tenant=tenant, type="invoice.paid", data=data, now=self.now
        ).event_id

    def expect_published(self, event_id: str, seen: dict[str, bool], at: datetime) -> None:
        """Nothing is lost: each endpoint that matched has a delivery of the event."""
        rows, body = self.write(_event_rows, event_id)
        assert body, event_id
        assert {endpoint_id for _, endpoint_id in rows} == seen.keys()
        assert len(rows) == len(seen)
        for delivery_id, endpoint_id in rows:
            delivery = Delivery(delivery_id, event_id, endpoint_id, body)
            self.expected.published(delivery, at, enabled=seen[endpoint_id])

    def disable(self, endpoint: Endpoint) -> None:
        done = self.write(endpoints.disable, endpoint.id, "operator", self.now)
        assert done == endpoint.enabled
        if done:
            self.expected.disabled(endpoint.id, "operator")

    def enable(self, endpoint: Endpoint) -> None:
        done = self.write(endpoints.enable, endpoint.id, self.now)
        assert done != endpoint.deleted
        if done:
            endpoint.disabled_reason = None

    def remove(self, endpoint: Endpoint) -> None:
        done = self.write(endpoints.remove, endpoint.id, self.now)
        assert done != endpoint.deleted
        if done:
            self.expected.deleted(endpoint.id)

    def rotate(self, endpoint: Endpoint) -> None:
        secret = generate_secret()
        sealed = self.service.sealer.seal(secret)
        done = self.write(endpoints.rotate_secret, endpoint.id, sealed, OVERLAP, self.now)
        assert done != endpoint.deleted
        if done:
            for old, end in endpoint.secrets.items():
                endpoint.secrets[old] = end or self.now + OVERLAP
            endpoint.secrets[secret] = None

    def move(self, endpoint: Endpoint) -> None:
        url = f"{endpoint.url}x"
        if self.write(endpoints.change, endpoint.id, {"url": url}, self.now):
            endpoint.url = url

    def cancel(self, delivery: Delivery) -> None:
        done = self.write(deliveries.cancel, delivery.id, self.now)
        assert done == (delivery.status == "pending")
        if done:
            delivery.end("cancelled", "cancelled")

    def redeliver(self, chosen: Sequence[Delivery]) -> None:
        ids = [delivery.id for delivery in chosen]
        done = self.write(deliveries.redeliver, ids, self.now)
        assert sorted(done) == sorted(
            id_ for id_ in set(ids) if self.expected.redelivered(id_, self.now)
        )

    def retry_now(self, delivery: Delivery) -> None:
        done = self.write(deliveries.retry_now, delivery.id, self.now)
        assert done == (delivery.status == "pending" and delivery.lease is None)
        if done:
            delivery.due = self.now

    # --- what workers do ---

    def claim(self, worker: Worker, fate: str) -> None:
        """``fate``: "ok", "rolled back", or "unnoticed" (committed, and the worker died)."""
        mark = self.clock.monotonic()

        def work(connection: Connection) -> Taken:
            taken = self.take_within(connection, worker)
            if fate == "rolled back":
                raise Crash
            return taken

        try:
            taken = self.write(work)
        except Crash:
            return
        self.expect_claimed(worker, taken, mark)
        if fate == "unnoticed":
            self.crash(worker)

    def take_within(self, connection: Connection, worker: Worker) -> Taken:
        in_flight = Counter(held.claimed.endpoint_id for held in worker.held)
        on_trial = any(held.claimed.claims == 3 for held in worker.held)
        places = Places(12 - len(worker.held), 3, in_flight, not on_trial)
        targets = worker.sending.targets
        return take(connection, places, targets, worker.turn, self.settings.lease, self.now)

    def expect_claimed(self, worker: Worker, taken: Taken, mark: float) -> None:
        self.serial += 1
        worker.turn = taken.next
        self.expected.claimed(taken.work, self.now, self.settings.lease)
        for endpoint in self.expected.endpoints.values():
            memory = worker.seen.setdefault(endpoint.id, [])
            memory.append((self.serial, endpoint.url, endpoint.active(self.now)))
        taken_of = Counter(claimed.endpoint_id for claimed in taken.work)
        for claimed in taken.work:
            state = taken.states.get(claimed.endpoint_id)
            checked = gate(claimed, state)
            endpoint = self.expected.endpoints[claimed.endpoint_id]
            if isinstance(checked, Ended):
                assert claimed.claims > 3 or not endpoint.enabled
                worker.results.append(Result(claimed, checked, self.now))
                continue
            # Once a disable, delete or cancel has committed, nothing new is let through.
            assert endpoint.enabled, "a claim of a disabled endpoint passed the gate"
            assert claimed.claims <= 3
            if checked.circuit == "open":
                assert taken_of[endpoint.id] == 1, "an open circuit lets one probe through"
                assert claimed.delivery_id in taken.probes
            paused = checked.paused_until
            assert paused is None or paused <= self.now, "claimed from a paused endpoint"
            probe = claimed.delivery_id in taken.probes
            self._hold(worker, claimed, mark, probe, checked.pristine)
        self._adopt_given_back()

    def _hold(
        self, worker: Worker, claimed: Claimed, mark: float, probe: bool, pristine: bool
    ) -> None:
        time = LeaseTime(claimed.claimed_at, mark, self.clock)
        worker.held.append(Held(claimed, time, probe, pristine, self.serial))

    def _adopt_given_back(self) -> None:
        """A claim may return what it took: a lease that had ended is then gone for good."""
        for row in self.write(_queue_rows):
            delivery = self.expected.deliveries[row["delivery_id"]]
            if row["lease_token"] is None and delivery.lease is not None:
                assert delivery.lease.end <= self.now, "a live lease was given back"
                delivery.lease, delivery.due = None, None
            elif delivery.lease is None and abs(row["due_at"] - (delivery.due or START)) > ROUNDING:
                assert row["due_at"] >= self.now - ROUNDING or delivery.due is None
                delivery.due = None

    def start(self, worker: Worker, held: Held) -> None:
        """Start to send. The request shows by what settings it was made."""
        claimed = held.claimed
        transport = worker.sending.transport
        assert isinstance(transport, ScriptedTransport)
        transport.last = None
        transport.sent.clear()
        attempt = make_attempt(
            worker.sending, claimed, held.time, probe=held.probe, was_pristine=held.was_pristine
        )

        async def begin() -> asyncio.Task[Result]:
            task = asyncio.get_running_loop().create_task(attempt)
            sent = asyncio.get_running_loop().create_task(transport.sent.wait())
            await asyncio.wait([task, sent], return_when=asyncio.FIRST_COMPLETED)
            sent.cancel()
            return task

        held.task = self.run(begin())
        held.exchange = transport.last
        if held.exchange is None:
            raise AssertionError(f"not sent: {held.task.result()}")
        self._check_request(worker, held, held.exchange)

    def _check_request(self, worker: Worker, held: Held, exchange: Exchange) -> None:
        claimed, request = held.claimed, exchange.request
        headers = request.headers
        delivery = self.expected.deliveries[claimed.delivery_id]
        assert request.body == delivery.body
        assert headers["webhook-id"] == delivery.id
        assert headers[f"{PREFIX}Event-Id"] == delivery.event_id
        assert headers[f"{PREFIX}Attempt"] == str(claimed.attempts + 1)
        said = self.sent.setdefault(delivery.id, (headers["webhook-id"], request.body))
        assert said == (headers["webhook-id"], request.body)
        assert headers["webhook-timestamp"] == str(int(self.now.timestamp()))
        used = frozenset(
            secret
            for secret in self.expected.endpoints[delivery.endpoint_id].secrets
            if sign(secret, delivery.id, int(self.now.timestamp()), request.body)
            in headers["webhook-signature"].split()
        )
        assert len(used) == len(headers["webhook-signature"].split())
        since = [m[1:] for m in worker.seen[delivery.endpoint_id] if m[0] >= held.serial]
        assert (request.url, used) in since, "sent by settings older than the claim"

    def finish(self, worker: Worker, held: Held, outcome: str) -> None:
        """The network says what became of a request; or the worker's grace period is over."""
        assert held.task is not None
        assert held.exchange is not None
        if outcome == "cancelled":
            held.task.cancel()
        else:
            answer(held.exchange, outcome)
        worker.results.append(self.run(_wait(held.task)))
        worker.held.remove(held)

    def crash(self, worker: Worker) -> None:
        """kill -9: what was claimed, sent and answered is forgotten; a new worker takes over."""
        for held in worker.in_flight:
            assert held.task is not None
            held.task.cancel()
            self.run(_wait(held.task))
        self.workers[self.workers.index(worker)] = self._worker()

    def record(self, worker: Worker, count: int, fate: str) -> None:
        """Record results, ``fate``: "ok", "rolled back" or "unnoticed" (committed, but the
        worker saw the connection break). After the last two the group is recorded again."""
        again = bool(worker.unsure)
        group = worker.unsure or _group(worker.results, count)
        if not again:
            worker.results = [result for result in worker.results if result not in group]

        def work(connection: Connection) -> set[str]:
            done = record(connection, group, self.rules, self.now, again=again)
            if fate == "rolled back":
                raise Crash
            return set(done.late)

        try:
            late = self.write(work)
        except Crash:
            worker.unsure = group
            return
        assert late == self.expected.settled(group, self.now)
        self._expect_health(group)
        worker.unsure = group if fate == "unnoticed" else []

    def _expect_health(self, group: Sequence[Result]) -> None:
        """Adopt what health made of outcomes: endpoints disabled for failing, and notices."""
        rows = self.write(_endpoint_rows)
        for row in rows:
            endpoint = self.expected.endpoints[row["id"]]
            reason = row["disabled_reason"]
            if reason == "failing" and endpoint.enabled:
                assert any(r.claimed.endpoint_id == endpoint.id for r in group)
                assert row["failing_since"] <= self.now - self.settings.disable_after
                self.expected.disabled(endpoint.id, reason)
        known = {delivery.event_id for delivery in self.expected.deliveries.values()}
        for event_id in self.write(_event_ids_of, OPERATOR):
            if event_id not in known:
                self.expect_published(event_id, self.matching(OPERATOR), self.now)


async def _wait(task: asyncio.Task[Result]) -> Result:
    await asyncio.wait([task])
    return task.result()


def _group(results: Sequence[Result], count: int) -> list[Result]:
    """As the recorder groups: in order, at most one of each delivery."""
    group: dict[str, Result] = {}
    for result in results[:count]:
        group.setdefault(result.claimed.delivery_id, result)
    return list(group.values())


def _event_rows(connection: Connection, event_id: str) -> tuple[list[tuple[str, str]], bytes]:
    table = tables.deliveries
    rows = connection.execute(
        select(table.c.id, table.c.endpoint_id).where(table.c.event_id == event_id)
    )
    body = connection.scalar(select(tables.events.c.body).where(tables.events.c.id == event_id))
    return [(row.id, row.endpoint_id) for row in rows], body or b""


def _event_ids_of(connection: Connection, tenant: str) -> list[str]:
    table = tables.events
    return list(connection.scalars(select(table.c.id).where(table.c.tenant_id == tenant)))


def _queue_rows(connection: Connection) -> list[dict[str, Any]]:
    return [row._asdict() for row in connection.execute(select(tables.queue))]


def _endpoint_rows(connection: Connection) -> list[dict[str, Any]]:
    return [row._asdict() for row in connection.execute(select(tables.endpoints))]
