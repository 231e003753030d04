"""Housekeeping: what is done now and then beside deliveries, on APScheduler.

Safe in every process at once: each piece of work is a short transaction that passes over what
another one holds, and doing it twice changes nothing. So there is no leader to elect or to lose.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import structlog
from apscheduler.executors.asyncio import AsyncIOExecutor
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.interval import IntervalTrigger

from delivery_service.clock import Clock
from delivery_service.jobs import gauges
from delivery_service.jobs.operations import OperationRunner
from delivery_service.jobs.sweep import Sweeper
from delivery_service.metrics import Metrics
from delivery_service.settings import Settings
from delivery_service.store import keys, retention, workers
from delivery_service.store.database import Database

GAUGES_EVERY = timedelta(seconds=15)
SWEEP_EVERY = timedelta(minutes=10)
LOOK_AT_CLOCK_EVERY = timedelta(seconds=10)

STEP = timedelta(seconds=5)
"""A wall clock that moves so much against the monotonic one was set, not slewed."""

BATCH_GRACE = 5.0
"""Seconds for an operation's batch to end when the process stops, and for giving back its lease.
Beyond that it is rolled back, and goes on elsewhere when the lease has ended."""

UNSEEN = timedelta(hours=1)
"""Workers not seen for so long are forgotten; they were killed, or they would have said so."""

TOKENS_KEPT = timedelta(days=1)
"""Portal tokens are removed so long after they have expired."""

log = structlog.get_logger(__name__)


class Housekeeping:
    """The jobs of one process; runs within ``async with``.

    ``wall`` is the clock that APScheduler goes by. Only the times at which jobs run come from it:
    what is old is decided by the database's clock.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        clock: Clock,
        metrics: Metrics,
        *,
        sweep_every: timedelta = SWEEP_EVERY,
        gauges_every: timedelta = GAUGES_EVERY,
        look_at_clock_every: timedelta = LOOK_AT_CLOCK_EVERY,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._settings = settings
        self._database = database
        self._clock = clock
        self._metrics = metrics
        self._every = {"gauges": gauges_every}
        self._sweep_every = sweep_every
        self._look_every = look_at_clock_every
        self._wall = wall
        self._runner = OperationRunner(settings, database, clock)
        self._sweeper = Sweeper(settings, database, clock, metrics)
        self._scheduler = AsyncIOScheduler(
            timezone=UTC,
            executors={"default": AsyncIOExecutor()},
            job_defaults={
                # A run that is late still runs, and several missed ones run once.
                "misfire_grace_time": None,
                "coalesce": True,
                "max_instances": 1,
            },
        )
        self._running: set[asyncio.Task[Any]] = set()
        self._watch: asyncio.Task[None] | None = None
        self._operating: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        work: dict[str, Callable[[], Awaitable[object]]] = {
            "gauges": self._refresh_gauges,
            "retention": self._sweeper.remove_old,
            "keys": self._sweeper.forget_keys,
            "secrets": self._expire_secrets,
            "workers": self._forget_workers,
            "portal_tokens": self._remove_portal_tokens,
        }
        for name, job in work.items():
            self._add(name, job)
        self._scheduler.start()
        self._watch = asyncio.create_task(self._watch_clock())
        self._operating = asyncio.create_task(self._runner.run())
        return self

    async def __aexit__(self, *_exception: object) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        self._scheduler.shutdown(wait=False)
        await asyncio.sleep(0)  # the scheduler stops by a callback of the loop
        if self._operating is not None:
            self._runner.stop()
            self._running.add(self._operating)
        # What is under way are short transactions: it is quicker, and safer for the connections,
        # to let them end than to break them off.
        if self._running:
            _, running = await asyncio.wait(set(self._running), timeout=BATCH_GRACE)
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running, timeout=BATCH_GRACE)

    def _add(self, name: str, job: Callable[[], Awaitable[object]]) -> None:
        every = self._every.get(name, self._sweep_every)
        is_gauge = name in self._every
        self._scheduler.add_job(
            self._run,
            IntervalTrigger(
                seconds=every.total_seconds(),
                timezone=UTC,
                # Processes that were started together don't sweep together.
                jitter=None if is_gauge else every.total_seconds() / 5,
            ),
            args=(name, job),
            id=name,
            next_run_time=self._wall(),
        )

    async def _run(self, name: str, job: Callable[[], Awaitable[object]]) -> None:
        # A task of its own: the scheduler, when it stops, breaks off the ones that it has started.
        task = asyncio.create_task(self._carry_out(name, job))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        with suppress(asyncio.CancelledError):  # which it would log as an error, with a traceback
            await asyncio.shield(task)

    async def _carry_out(self, name: str, job: Callable[[], Awaitable[object]]) -> None:
        try:
            await job()
        except asyncio.CancelledError:
            # The process stops, and did not wait any longer.
            log.debug("housekeeping_stopped", job=name)
        except Exception as error:  # noqa: BLE001 - the next run tries again
            log.warning("housekeeping_failed", job=name, error=repr(error)[:300])

    async def _refresh_gauges(self) -> None:
        try:
            state = await self._database.read(gauges.state, self._settings, self._clock.now())
        except Exception:
            self._metrics.queue_is(None)
            raise
        self._metrics.queue_is(state)

    async def _expire_secrets(self) -> None:
        removed = await self._database.write(retention.remove_expired_secrets, self._clock.now())
        self._metrics.removed["secrets"] += removed

    async def _forget_workers(self) -> None:
        await self._database.write(workers.forget_unseen, UNSEEN, self._clock.now())

    async def _remove_portal_tokens(self) -> None:
        removed = await self._database.write(
            keys.remove_portal_tokens, TOKENS_KEPT, self._clock.now()
        )
        self._metrics.removed["portal_tokens"] += removed

    async def _watch_clock(self) -> None:
        """Run everything anew when the clock was set.

        APScheduler keeps the wall-clock time of each next run: with the clock set back an hour,
        nothing would run for an hour (agronholm/apscheduler#339).
        """
        offset = self._offset()
        while True:
            await asyncio.sleep(self._look_every.total_seconds())
            moved, offset = abs(self._offset() - offset), self._offset()
            if moved > STEP.total_seconds():
                log.warning("clock_was_set", seconds=round(moved))
                for job in self._scheduler.get_jobs():
                    job.modify(next_run_time=self._wall())

    def _offset(self) -> float:
        return self._wall().timestamp() - time.monotonic()
