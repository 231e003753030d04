"""Runs bulk operations and broadcasts: in batches, each with its cursor in one transaction.

Every process may do it. An operation belongs to whoever holds its lease; when that process dies,
the next one goes on from the cursor once the lease has ended. What is made due goes to the lane of
bulk work, one delivery after another at the setting `bulk_rate`, so that live traffic never waits
for it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from delivery_service.clock import Clock
from delivery_service.settings import Settings
from delivery_service.store import bulk, deliveries, operations, tenants
from delivery_service.store.database import Database
from sender.publish import NewEvent, publish_many
from wire.errors import SurehookError
from wire.rawjson import RawJson

BATCH = 500
"""Deliveries of one transaction at most; 30 to 60 ms of the database's time."""

SQLITE_BATCH = 200
"""The same where writers take turns: so long may another one have to wait."""

TENANTS = 50
"""Tenants of one transaction of a broadcast, with all their endpoints."""

LOOK_EVERY = 1.0
"""Seconds between two looks for something to do."""

SHORTEST_PAUSE = 0.02
"""Seconds between two batches at least. A pause is as long as the batch was, so that operations
never take more than half of the database's time, however slow the database is."""

MOST_FAILURES = 5
"""Failures in a row of one batch, other than of the connection, that end the operation."""

AWAY_PAUSE = 2.0

REMEMBERED = 3
"""Batches, of a second at most, that are looked at for whether workers keep up."""

TOLERATED = 0.1
"""Part of those deliveries that may be overdue. With more, workers have no time to spare, and live
traffic would wait too."""

SLOWEST = 10.0
"""The rate is lowered to this part of `bulk_rate` at most: an endpoint that is down, whose
deliveries wait for it, must not hold up the operation."""

log = structlog.get_logger(__name__)

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Step:
    """What a batch did: ``done`` rows, rows passed over by reason, and the deliveries that it made
    due. ``cursor`` is the last row that need not be looked at again."""

    cursor: str | None
    is_end: bool
    first: str | None = None
    done: int = 0
    made_due: Sequence[str] = ()
    passed_over: Counter[str] = field(default_factory=Counter)


class OperationRunner:
    """Carries out operations, one at a time; ``only`` that one, if it is given."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        clock: Clock,
        *,
        only: str | None = None,
        look_every: float = LOOK_EVERY,
    ) -> None:
        self._settings = settings
        self._database = database
        self._clock = clock
        self._only = only
        self._look_every = look_every
        self._stopping = asyncio.Event()
        self._rate = float(settings.bulk_rate)
        self._recent: deque[Sequence[str]] = deque(maxlen=REMEMBERED)
        self._token = f"runner_{uuid4().hex}"

    def stop(self) -> None:
        """Let `run` return after the batch that is under way."""
        self._stopping.set()

    async def run(self) -> None:
        """Look for operations and carry them out, until stopped."""
        while not self._stopping.is_set():
            try:
                is_busy = await self.run_next()
            except Exception as error:  # noqa: BLE001 - the next look tries again
                log.warning("operations_failed", error=type(error).__name__)
                is_busy = False
            if not is_busy:
                await self._pause(self._look_every)

    async def run_next(self) -> bool:
        """Carry out the oldest operation that nobody works on; whether there was one."""
        now = self._clock.now
        found = await self._database.read(operations.next_free, now(), self._only)
        if found is None:
            return False
        token, lease = self._token, self._settings.lease
        if await self._database.write(operations.claim, found, token, lease, now()):
            log.info("operation_claimed", operation_id=found)
            await self._carry_out(found)
        return True

    async def _carry_out(self, operation_id: str) -> None:
        failures = 0
        while not self._stopping.is_set():
            mark = self._clock.monotonic()
            try:
                step = await self._database.write(self._batch, operation_id, self._clock.now())
            except Exception as error:  # noqa: BLE001 - told in the operation's row
                if not _is_away(error):
                    failures += 1
                if isinstance(error, SurehookError) or failures == MOST_FAILURES:
                    await self._fail(operation_id, error)
                    return
                log.warning("operation_delayed", operation_id=operation_id, error=repr(error)[:300])
                await self._pause(AWAY_PAUSE)
                continue
            failures = 0
            self._recent.append(step.made_due if step else ())
            if step is None or step.is_end:
                log.info("operation_left" if step is None else "operation_done", id=operation_id)
                return
            took = self._clock.monotonic() - mark
            await self._pause(max(SHORTEST_PAUSE, took, len(step.made_due) * self._every - took))
        await self._database.write(operations.release, operation_id, self._token)

    async def _fail(self, operation_id: str, error: Exception) -> None:
        # A driver's text holds the statement's values: its type has to do.
        told = str(error) if isinstance(error, SurehookError) else type(error).__name__
        log.warning("operation_failed", operation_id=operation_id, error=told)
        await self._database.write(
            operations.fail, operation_id, self._token, told, self._clock.now()
        )

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    @property
    def _every(self) -> float:
        return 1 / self._rate

    def _limit(self, most: int) -> int:
        # No more than a second's worth, so that a pause stays far below the lease.
        return max(1, min(most, int(self._rate)))

    def _adapt(self, connection: Connection, now: datetime | None) -> None:
        """Slow down while workers fall behind with what was made due, and speed up again."""
        made = [id_ for batch in self._recent for id_ in batch]
        if not made:
            return
        late = bulk.count_late(connection, made, 2 * self._settings.poll_interval, now)
        full = float(self._settings.bulk_rate)
        if late > TOLERATED * len(made):
            self._rate = max(self._rate / 2, full / SLOWEST)
        else:
            self._rate = min(self._rate * 1.5, full)

    def _batch(
        self, connection: Connection, operation_id: str, now: datetime | None
    ) -> Step | None:
        """Do the next batch; None when the operation was cancelled or is another process's."""
        row = operations.renew(connection, operation_id, self._token, self._settings.lease, now)
        if row is None:
            return None
        self._adapt(connection, now)
        kinds: dict[str, Callable[[Connection, Row, datetime | None], Step]] = {
            bulk.RECOVER: self._redeliver,
            bulk.REPLAY: self._redeliver,
            bulk.CANCEL: self._cancel,
            bulk.BROADCAST: self._broadcast,
        }
        step = kinds[row["kind"]](connection, row, now)
        passed_over = Counter(row["passed_over"]) + step.passed_over
        values = {
            "first": row["first"] or step.first,
            "cursor": step.cursor or row["cursor"],
            "matched": row["matched"] + step.done + step.passed_over.total(),
            "done": row["done"] + step.done,
            "passed_over": dict(passed_over),
        }
        if step.is_end or step.done or values["cursor"] != row["cursor"]:
            operations.advance(connection, operation_id, values, now, is_end=step.is_end)
        return step

    def _judge(self, connection: Connection, row: Row, now: datetime | None) -> bulk.Judged:
        where = bulk.Filter.from_json(row["filter"])
        most = SQLITE_BATCH if self._settings.is_sqlite else BATCH
        return bulk.judge(
            connection,
            row["kind"],
            where,
            where.end(row["created_at"]),
            after=row["cursor"],
            limit=self._limit(most),
            replay_window=self._settings.replay_window,
            now=now,
            lock=True,
        )

    def _redeliver(self, connection: Connection, row: Row, now: datetime | None) -> Step:
        judged = self._judge(connection, row, now)
        revived = deliveries.redeliver(
            connection,
            judged.ids,
            now,
            lane=deliveries.BULK_LANE,
            every=timedelta(seconds=self._every),
        )
        # Since they were looked at, somebody else redelivered them or disabled their endpoint.
        overtaken = Counter(overtaken=len(judged.ids) - len(revived))
        return Step(
            cursor=judged.last,
            is_end=judged.is_end,
            first=judged.first,
            done=len(revived),
            made_due=revived,
            passed_over=judged.passed_over + overtaken,
        )

    def _cancel(self, connection: Connection, row: Row, now: datetime | None) -> Step:
        judged = self._judge(connection, row, now)
        locked = bulk.lock_queued(connection, judged.ids)
        held = [id_ for id_ in judged.ids if id_ not in locked]
        cancelled = deliveries.cancel_many(connection, sorted(locked), now)
        cursor = judged.last
        if held:
            # Being recorded or claimed just now: those are looked at again. What was cancelled
            # beyond them is no longer in the queue.
            cursor = max((id_ for id_ in judged.ids if id_ < held[0]), default=None)
        return Step(
            cursor=cursor,
            is_end=judged.is_end and not held,
            first=judged.first,
            done=len(cancelled),
        )

    def _broadcast(self, connection: Connection, row: Row, now: datetime | None) -> Step:
        limit = self._limit(TENANTS)
        found = tenants.known(connection, limit=limit, after=row["cursor"] or "")
        data = RawJson(row["data"])
        published = publish_many(
            connection,
            [
                NewEvent(
                    tenant=tenant,
                    type=row["filter"]["type"],
                    data=data,
                    idempotency_key=row["id"],
                )
                for tenant in found
            ],
            max_body_bytes=self._settings.max_body_bytes,
            now=now,
        )
        made = [id_ for each in published if not each.duplicate for id_ in each.delivery_ids]
        every = timedelta(seconds=self._every)
        deliveries.put_in_bulk_lane(connection, made, every, now)
        duplicates = Counter(already_published=sum(each.duplicate for each in published))
        return Step(
            cursor=found[-1] if found else None,
            is_end=len(found) < limit,
            done=len(published) - duplicates.total(),
            made_due=made,
            passed_over=+duplicates,
        )


def _is_away(error: Exception) -> bool:
    if isinstance(error, DBAPIError):
        return error.connection_invalidated or isinstance(error, OperationalError | InterfaceError)
    return isinstance(error, PoolTimeout | OSError)
