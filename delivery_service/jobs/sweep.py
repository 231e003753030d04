"""Sweeping: what is too old goes, batch by batch, and never in the way of deliveries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

from sqlalchemy import Connection

from delivery_service.clock import Clock
from delivery_service.metrics import Metrics
from delivery_service.settings import Settings
from delivery_service.store import retention
from delivery_service.store.database import Database
from delivery_service.store.retention import Swept

BATCH = 200
"""Rows looked for in one transaction: 10 to 40 ms on a busy machine, measured on both databases
with one delivery and one attempt an event; so long may one of SQLite's writers have to wait."""

BATCHES = 500
"""Batches of one run: 100,000 events, attempts or keys, six times an hour."""

SHORTEST_PAUSE = 0.02
"""Seconds between two batches at least. A pause is as long as the batch was, so that sweeping
never takes more than half of the database's time, however slow the database is."""

Batch = Callable[[Connection, timedelta, int, str, datetime | None], Swept]


class Sweeper:
    """Removes what the settings say is too old."""

    def __init__(
        self, settings: Settings, database: Database, clock: Clock, metrics: Metrics
    ) -> None:
        self._settings = settings
        self._database = database
        self._clock = clock
        self._metrics = metrics

    async def remove_old(self) -> None:
        """Remove events with their deliveries, attempts that need not be kept as long, and
        operations."""
        settings = self._settings
        keep, keep_attempts = settings.retention, settings.attempt_retention
        if keep_attempts and (not keep or keep_attempts < keep):
            await self._sweep("attempts", retention.remove_attempts, keep_attempts)
        if keep:
            await self._sweep("events", retention.remove_events, keep)
            await self._sweep("operations", retention.remove_operations, keep)

    async def forget_keys(self) -> None:
        """Forget idempotency keys."""
        age = self._settings.idempotency_key_ttl
        await self._sweep("keys", retention.forget_keys, age)
        await self._sweep("keys", retention.forget_operation_keys, age)

    async def _sweep(self, name: str, batch: Batch, age: timedelta) -> None:
        after: str | None = ""
        for _ in range(BATCHES):
            mark = self._clock.monotonic()
            swept = await self._database.write(batch, age, BATCH, after or "", self._clock.now())
            self._metrics.removed[name] += swept.removed
            after = swept.after
            if after is None:
                return
            await asyncio.sleep(max(SHORTEST_PAUSE, self._clock.monotonic() - mark))
