"""The worker: claims what is due, sends it, and hands the results to the recorder.

Polling is the truth: whatever is missed (a poke, a notification, a dead connection) is found by
the next look at the queue.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import structlog

from delivery_service.clock import Clock
from delivery_service.metrics import Metrics, WorkerState
from delivery_service.policy.health import HealthRules
from delivery_service.policy.retry import Retry
from delivery_service.settings import Settings
from delivery_service.store import workers
from delivery_service.store.database import Database
from delivery_service.store.waking import can_notify, listen
from delivery_service.worker.attempt import (
    POISON_CLAIMS,
    Ended,
    LeaseTime,
    Result,
    Sending,
    gate,
    make_attempt,
)
from delivery_service.worker.observe import Observer
from delivery_service.worker.record import Recorded
from delivery_service.worker.recorder import LONGEST_PAUSE, Recorder
from delivery_service.worker.take import SUSPECT_PAUSE, Places, Taken, Turn, put_back, take
from delivery_service.worker.tracing import AttemptTracer
from wire.ids import new_id

GATHER_SECONDS = 0.02
"""While there is more to do, how long freed places are gathered before the next claim."""

BUSY_SECONDS = 0.02
"""Pause before the next look at the queue right after some work was found."""

AT_ONCE = 20
"""Attempts that begin in one turn of the event loop. More would hold up the answers, and each of
the statements of the next claim."""

HEARTBEAT_SECONDS = 10.0

log = structlog.get_logger(__name__)

_Beginning = tuple[
    Callable[[], Coroutine[Any, Any, Result]], Callable[[asyncio.Task[Result]], None]
]


class Worker:
    """One worker in one event loop. ``run`` until ``stop``; ``poke`` after publishing here."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        clock: Clock,
        sending: Sending,
        health_rules: HealthRules,
        metrics: Metrics | None = None,
        tracer: AttemptTracer | None = None,
    ) -> None:
        self.id = new_id("wrk")
        self._metrics = metrics or Metrics()
        self._observer = Observer(self._metrics, tracer)
        self._settings = settings
        self._database = database
        self._clock = clock
        self._sending = sending
        self._recorder = Recorder(
            database,
            clock,
            health_rules,
            busy=lambda: self.in_flight > 1,
            on_recorded=self._recorded,
        )
        self._beginning: deque[_Beginning] = deque()
        self._tasks: set[asyncio.Task[Result]] = set()
        self._in_flight: Counter[str] = Counter()
        self._on_trial = 0
        self._turn = Turn()
        self._longest_claim = (settings.lease - settings.attempt_timeout).total_seconds()
        # A claim's statements cost the same for one delivery as for many.
        self._worth_a_claim = max(1, settings.concurrency // 4)
        self._freed = 0
        self._wake = asyncio.Event()
        self._hungry = False
        self._worked_at = clock.monotonic()
        self._stopping = False

    @property
    def in_flight(self) -> int:
        """Requests in flight, or about to be."""
        return len(self._tasks) + len(self._beginning)

    def poke(self) -> None:
        """Say that something may be due."""
        self._wake.set()

    def stop(self) -> None:
        """Claim nothing more; `run` returns when what is in flight has been recorded."""
        self._stopping = True
        self._wake.set()

    async def run(self) -> None:
        """Work until stopped."""
        beside = [asyncio.create_task(each) for each in (self._recorder.run(), self._heartbeat())]
        if can_notify(self._settings):
            beside.append(asyncio.create_task(listen(self._database, self.poke)))
        self._metrics.watch_worker(self._state)
        log.info("worker_started", worker_id=self.id, pid=os.getpid())
        try:
            # Before any work: a worker that has sent has been seen.
            await self._show_alive()
            while not self._stopping:
                await self._wait(await self._round())
            await self._finish()
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            await self._sending.transport.close()
            self._metrics.watch_worker(None)
        log.info("worker_stopped", worker_id=self.id)

    def _state(self) -> WorkerState:
        transport = self._sending.transport
        return WorkerState(
            in_flight=self.in_flight,
            recorder_backlog=self._recorder.backlog,
            connections_opened=transport.connections_opened,
            connections_reused=transport.connections_reused,
        )

    async def run_until_idle(self) -> None:
        """Claim and send until nothing is due, then return. For tests and for tools that move
        the clock themselves."""
        recording = asyncio.create_task(self._recorder.run())
        try:
            while await self._round() or self.in_flight:
                self._begin(len(self._beginning))
                if self._tasks:
                    await asyncio.wait(self._tasks)
                await self._recorder.drained()
        finally:
            recording.cancel()
            await asyncio.gather(recording, return_exceptions=True)

    async def _round(self) -> bool:
        """Claim once and start what was claimed. Returns whether another look is worth while."""
        free = self._settings.concurrency - self.in_flight
        self._hungry = True
        if free <= 0 or self._recorder.backlog > 2 * self._settings.concurrency:
            return False
        places = Places(
            free, self._settings.endpoint_concurrency, self._in_flight, self._on_trial == 0
        )
        mark = self._clock.monotonic()
        try:
            taken = await self._database.write(
                take,
                places,
                self._sending.targets,
                self._turn,
                self._settings.lease,
                self._clock.now(),
            )
            too_late = self._clock.monotonic() - mark > self._longest_claim
            if too_late or self._stopping:
                # Too late: the lease could end, and another worker send, while this one still does.
                await self._database.write(put_back, taken.work, self._clock.now())
                return not self._stopping
        except Exception as error:  # noqa: BLE001 - the worker reconnects for ever
            log.warning("claim_failed", error=repr(error)[:300])
            await asyncio.sleep(min(self._pause(), LONGEST_PAUSE))
            return False
        self._metrics.claimed(len(taken.work), self._clock.monotonic() - mark)
        self._turn = taken.next
        self._hungry = taken.found
        if taken.work:
            self._worked_at = self._clock.monotonic()
        if taken.suspects:
            self._poke_in(SUSPECT_PAUSE)
        self._start(taken, mark)
        return bool(taken.work)

    def _start(self, taken: Taken, mark: float) -> None:
        if not taken.work:
            return
        is_beginning = bool(self._beginning)
        time = LeaseTime(taken.work[0].claimed_at, mark, self._clock)
        for claimed in taken.work:
            checked = gate(claimed, taken.states.get(claimed.endpoint_id))
            if isinstance(checked, Ended):
                self._recorder.add(Result(claimed, checked, time.now()))
                continue
            self._in_flight[claimed.endpoint_id] += 1
            on_trial = claimed.claims == POISON_CLAIMS
            self._on_trial += on_trial
            attempt = partial(
                make_attempt,
                self._sending,
                claimed,
                time,
                probe=claimed.delivery_id in taken.probes,
                was_pristine=checked.pristine,
            )
            self._beginning.append((attempt, partial(self._done, claimed.endpoint_id, on_trial)))
        if not is_beginning:
            self._begin(AT_ONCE)

    def _begin(self, count: int) -> None:
        for _ in range(min(count, len(self._beginning))):
            attempt, done = self._beginning.popleft()
            task = asyncio.create_task(attempt())
            self._tasks.add(task)
            task.add_done_callback(done)
        if self._beginning:
            asyncio.get_running_loop().call_soon(self._begin, AT_ONCE)

    def _done(self, endpoint_id: str, on_trial: bool, task: asyncio.Task[Result]) -> None:
        self._tasks.discard(task)
        self._in_flight[endpoint_id] -= 1
        if not self._in_flight[endpoint_id]:
            del self._in_flight[endpoint_id]
        self._on_trial -= on_trial
        self._recorder.add(task.result())
        if self._hungry:
            self._gather()

    def _recorded(self, group: Sequence[Result], recorded: Recorded, seconds: float) -> None:
        self._observer.recorded(group, recorded, seconds)
        for result in group:
            if isinstance(result.step, Retry):
                self._poke_in(result.step.delay)

    def _poke_in(self, delay: timedelta) -> None:
        """Look again after ``delay``, if that is before the next poll."""
        if delay < self._settings.poll_interval:
            asyncio.get_running_loop().call_later(delay.total_seconds(), self.poke)

    async def _wait(self, again: bool) -> None:
        """Wait for places, for work, or for the next poll."""
        if again and self._has_places():
            return
        pause = GATHER_SECONDS if again else self._pause()
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._wake.wait()
        self._wake.clear()
        self._freed = 0

    def _has_places(self) -> bool:
        return self.in_flight + self._worth_a_claim <= self._settings.concurrency

    def _gather(self) -> None:
        """Note a freed place; wake up for many at once, or for few after a moment."""
        self._freed += 1
        if self._freed >= self._worth_a_claim or not self.in_flight:
            self._wake.set()
        elif self._freed == 1:
            asyncio.get_running_loop().call_later(GATHER_SECONDS, self.poke)

    def _pause(self) -> float:
        """How long to wait for the next look: a quarter of the time for which nothing has come, and
        so a short time after work, since more is likely to come; at most ``poll_interval``."""
        longest = self._settings.poll_interval.total_seconds()
        idle = self._clock.monotonic() - self._worked_at
        pause = min(max(BUSY_SECONDS, idle / 4), longest)
        # Jitter, so that many workers don't all look at the same moment.
        return pause * random.uniform(0.8, 1.2)  # noqa: S311

    async def _heartbeat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            await self._show_alive()

    async def _show_alive(self) -> None:
        try:
            await self._database.write(
                workers.seen, self.id, socket.gethostname(), os.getpid(), self._clock.now()
            )
        except Exception as error:  # noqa: BLE001 - only health checks read it
            log.warning("heartbeat_failed", error=repr(error)[:300])

    async def _finish(self) -> None:
        """Let what is in flight end, within the grace period, and record it."""
        self._begin(len(self._beginning))
        if self._tasks:
            grace = self._settings.shutdown_grace.total_seconds()
            _, running = await asyncio.wait(self._tasks, timeout=grace)
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running)
        try:
            async with asyncio.timeout(LONGEST_PAUSE * 2):
                await self._recorder.drained()
                await self._database.write(workers.forget, self.id)
        except Exception as error:  # noqa: BLE001 - the leases will end by themselves
            log.error("stopped_unrecorded", results=self._recorder.backlog, error=repr(error)[:300])
