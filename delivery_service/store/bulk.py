"""The deliveries that a bulk operation means, window by window in the order of their ids.

A window is a bounded number of rows that an index finds; what no index serves (event type,
status, reason, last outcome) is looked at in those rows. So a batch stays short however few rows
match, and nothing is ever counted as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal, Self

from sqlalchemy import Connection, Select, func, select

from delivery_service.store.workers import time
from sender.tables import deliveries, endpoints, events, queue
from sender.types import later
from wire.envelope import format_timestamp, parse_timestamp
from wire.ids import DELIVERY, first_id, id_time

Kind = Literal["recover", "replay", "cancel", "broadcast"]
Ended = Literal["delivered", "dead", "cancelled", "skipped"]
"""The states of deliveries that can be redelivered."""
RECOVER: Final = "recover"
REPLAY: Final = "replay"
CANCEL: Final = "cancel"
BROADCAST: Final = "broadcast"

_MILLISECOND = timedelta(milliseconds=1)
COUNT_WINDOW = 1000
"""Rows looked at in one transaction by a dry run."""

Rows = Sequence[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which deliveries: created from ``since`` to before ``until``, and equal in what is given."""

    since: datetime
    until: datetime | None = None
    tenant: str | None = None
    endpoint: str | None = None
    event_type: str | None = None
    status: str | None = None
    reason: str | None = None
    last_outcome: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what is given, with times in RFC 3339."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return {
            name: format_timestamp(value) if isinstance(value, datetime) else value
            for name, value in given.items()
        }

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> Self:
        """Read what `to_json` returned."""
        members = dict(given)
        for name in {"since", "until"} & given.keys():
            members[name] = parse_timestamp(given[name])
        return cls(**members)

    def end(self, created_at: datetime) -> datetime:
        """Where the operation ends that was created then: it leaves alone what came later."""
        return created_at + _MILLISECOND if self.until is None else self.until


@dataclass(frozen=True, slots=True)
class Judged:
    """What can be done with the rows of a window: ``ids`` of those that it can be done to, counts
    of the others by reason, and the ``last`` row looked at, None where there was none."""

    ids: list[str]
    passed_over: Counter[str]
    first: str | None
    last: str | None
    is_end: bool


def judge(
    connection: Connection,
    kind: str,
    where: Filter,
    end: datetime,
    *,
    after: str | None,
    limit: int,
    replay_window: timedelta,
    now: datetime | None = None,
    lock: bool = False,
) -> Judged:
    """Look at the next ``limit`` rows from the one after ``after`` on.

    ``lock``: keep the events' bodies from being deleted until the commit.
    """
    rows = connection.execute(_window(kind, where, end, after).limit(limit)).all()
    matched = [row for row in rows if _matches(kind, where, row)]
    reasons: dict[str, str | None] = {}
    if kind != CANCEL and matched:
        oldest = time(connection, now) - replay_window
        reasons = _reasons(connection, where, matched, oldest, lock=lock)
    ids = [row.id for row in matched if reasons.get(row.id) is None]
    return Judged(
        ids=ids,
        passed_over=Counter(reason for reason in reasons.values() if reason is not None),
        first=rows[0].id if rows else None,
        last=rows[-1].id if rows else None,
        is_end=len(rows) < limit,
    )


def lock_queued(connection: Connection, delivery_ids: Sequence[str]) -> set[str]:
    """Lock the queue rows of deliveries and return whose: those that another transaction holds
    are left out, since waiting for several in turn could be a deadlock."""
    return set(
        connection.scalars(
            select(queue.c.delivery_id)
            .where(queue.c.delivery_id.in_(delivery_ids))
            .with_for_update(skip_locked=True)
        )
    )


def count_late(
    connection: Connection,
    delivery_ids: Sequence[str],
    grace: timedelta,
    now: datetime | None = None,
) -> int:
    """Count those of the deliveries that no worker has, ``grace`` after they were due."""
    return connection.execute(
        select(func.count()).where(
            queue.c.delivery_id.in_(delivery_ids),
            queue.c.lease_token.is_(None),
            queue.c.due_at <= later(-grace.total_seconds(), now),
        )
    ).scalar_one()


def _window(kind: str, where: Filter, end: datetime, after: str | None) -> Select[Any]:
    # A cancellation goes along the queue, which holds pending deliveries only.
    position = queue.c.delivery_id if kind == CANCEL else deliveries.c.id
    query = select(
        deliveries.c.id,
        deliveries.c.status,
        deliveries.c.reason,
        deliveries.c.last_outcome,
        deliveries.c.event_type,
        deliveries.c.endpoint_id,
        deliveries.c.event_id,
        deliveries.c.created_at,
    )
    if kind == CANCEL:
        query = query.join(queue, queue.c.delivery_id == deliveries.c.id)
    if kind == RECOVER:
        query = query.where(deliveries.c.undelivered)
    if where.tenant is not None:
        query = query.where(deliveries.c.tenant_id == where.tenant)
    if where.endpoint is not None:
        query = query.where(deliveries.c.endpoint_id == where.endpoint)
    query = query.where(position < first_id(DELIVERY, end))
    if after is None:
        query = query.where(position >= first_id(DELIVERY, where.since))
    else:
        query = query.where(position > after)
    return query.order_by(position)


def _matches(kind: str, where: Filter, row: Any) -> bool:
    return (
        (row.status == "pending") is (kind == CANCEL)
        and where.event_type in (None, row.event_type)
        and where.status in (None, row.status)
        and where.reason in (None, row.reason)
        and where.last_outcome in (None, row.last_outcome)
    )


def _reasons(
    connection: Connection, where: Filter, rows: Rows, oldest: datetime, *, lock: bool
) -> dict[str, str | None]:
    """Why each of the rows can't be redelivered; None where it can."""
    of_events = (
        select(events.c.id, events.c.body_deleted_at)
        .where(events.c.id.in_({row.event_id for row in rows}))
        .order_by(events.c.id)
    )
    if lock:
        of_events = of_events.with_for_update(read=True)
    has_body = {row.id: row.body_deleted_at is None for row in connection.execute(of_events)}
    found = connection.execute(
        select(endpoints.c.id, endpoints.c.status, endpoints.c.deleted_at).where(
            endpoints.c.id.in_({row.endpoint_id for row in rows})
        )
    )
    status = {row.id: row.status for row in found if row.deleted_at is None}
    # Somebody did not want it sent; it takes asking for it to send it after all.
    keeps_cancelled = where.status is None and where.reason is None

    def reason(row: Any) -> str | None:
        tests = {
            "cancelled": row.status == "cancelled" and keeps_cancelled,
            "replay_window_over": row.created_at < oldest,
            "endpoint_deleted": row.endpoint_id not in status,
            "endpoint_disabled": status.get(row.endpoint_id) != "enabled",
            "event_removed": row.event_id not in has_body,
            "body_deleted": not has_body.get(row.event_id, False),
        }
        return next((name for name, holds in tests.items() if holds), None)

    return {row.id: reason(row) for row in rows}


def progress(row: dict[str, Any]) -> float | None:
    """How far an operation is, from 0 to 1, or None.

    By time, since counting all that match would take as long as the work: from the first delivery
    looked at to the end of the filter.
    """
    if row["status"] == "done":
        return 1.0
    if row["kind"] == BROADCAST:
        return None
    if row["first"] is None:
        return 0.0
    where = Filter.from_json(row["filter"])
    start = id_time(row["first"])
    span = (min(where.end(row["created_at"]), row["created_at"]) - start).total_seconds()
    done = (id_time(row["cursor"] or row["first"]) - start).total_seconds()
    return round(min(1.0, done / span), 4) if span > 0 else 0.0


async def count(
    read: Callable[..., Awaitable[Any]],
    kind: str,
    where: Filter,
    replay_window: timedelta,
    now: datetime | None = None,
) -> tuple[int, Counter[str]]:
    """Count what an operation would do, and what it would pass over by reason.

    ``read`` runs a piece of work in a transaction of its own: there is one for each window.
    """
    end = where.end(await read(time, now))
    possible = 0
    passed_over: Counter[str] = Counter()
    after: str | None = None
    while True:
        judged: Judged = await read(
            judge,
            kind,
            where,
            end,
            after=after,
            limit=COUNT_WINDOW,
            replay_window=replay_window,
            now=now,
        )
        possible += len(judged.ids)
        passed_over += judged.passed_over
        if judged.is_end:
            return possible, passed_over
        after = judged.last
