"""The queue: what is still to do. The only module that knows how work is claimed.

A claim is a lease: ``due_at`` moves to the lease's end and a fresh token is written. A worker
that dies needs no reaper, its rows are simply due again. Every later change names the token, so
a worker that comes back late changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import (
    Connection,
    Executable,
    Float,
    Integer,
    Text,
    and_,
    bindparam,
    delete,
    exists,
    func,
    literal,
    literal_column,
    or_,
    select,
    true,
    update,
)

from delivery_service.policy.sharing import Lane, Want
from delivery_service.store.rows import Columns, parameters, relation
from sender.tables import deliveries, endpoints, events, queue
from sender.types import UtcDateTime, later, moment

PEEK = 200
"""Oldest due rows looked at first: if there are fewer, they are all there is to do."""

STEPS = 200
"""Endpoints that one scan passes at most, about 5 µs each."""

MOST = 1000
"""Rows that one claim can take."""

_WANTS: Columns = (("endpoint_id", Text()), ("lane", Integer()), ("count", Integer()))
_IDS: Columns = (("id", Text()),)


@dataclass(frozen=True, slots=True)
class Scan:
    """Lanes with due work, oldest or next in turn first. ``cursor`` is where to go on."""

    lanes: tuple[Lane, ...]
    cursor: str


def scan(connection: Connection, cursor: str, now: datetime | None = None) -> Scan:
    """Find lanes that have due work and are not held back.

    Where little is due, a look at the oldest due rows finds it all. Where much is, they may all
    be one endpoint's; then the endpoints are also visited in turn from ``cursor``, by a loose
    scan of the index that takes one step for each endpoint, however many rows it has.
    """
    kind = (connection.dialect.name, now is not None)
    oldest = connection.execute(_peek(*kind), {"now": now, "peek": PEEK}).all()
    lanes = [(row.endpoint_id, row.lane) for row in oldest if not row.held]
    if sum(row.rows for row in oldest) < PEEK:
        return Scan(tuple(lanes), cursor)
    visited = connection.execute(
        _visit(*kind), {"now": now, "cursor": cursor, "steps": STEPS}
    ).all()
    in_turn = [
        (row.endpoint_id, lane)
        for row in visited
        for lane, due in ((0, row.first), (1, row.again))
        if due and not row.held
    ]
    end = visited[-1].endpoint_id if len(visited) == STEPS else ""
    return Scan(tuple(dict.fromkeys(in_turn + lanes)), end)


def _now(manual: bool) -> Any:
    return moment(bindparam("now", type_=UtcDateTime()) if manual else None)


def _held(manual: bool) -> Any:
    # Rows of endpoints that are not enabled are let through: the worker ends them.
    now = _now(manual)
    return and_(
        endpoints.c.status == "enabled",
        endpoints.c.deleted_at.is_(None),
        or_(
            func.coalesce(endpoints.c.paused_until > now, False),
            func.coalesce(endpoints.c.rate_next_at > now, False),
        ),
    )


@cache
def _peek(_dialect: str, manual: bool) -> Executable:
    oldest = (
        select(queue.c.endpoint_id, queue.c.lane, queue.c.due_at)
        .where(queue.c.due_at <= _now(manual))
        .order_by(queue.c.due_at)
        .limit(bindparam("peek"))
        .subquery("oldest")
    )
    return (
        select(
            oldest.c.endpoint_id,
            oldest.c.lane,
            func.count().label("rows"),
            func.coalesce(_held(manual), False).label("held"),
        )
        .select_from(oldest.outerjoin(endpoints, endpoints.c.id == oldest.c.endpoint_id))
        .group_by(oldest.c.endpoint_id, oldest.c.lane, endpoints.c.id)
        .order_by(func.min(oldest.c.due_at))
    )


@cache
def _visit(_dialect: str, manual: bool) -> Executable:
    ring = (
        select(
            func.min(queue.c.endpoint_id).label("endpoint_id"), literal_column("1").label("step")
        )
        .where(queue.c.endpoint_id > bindparam("cursor"))
        .cte("ring", recursive=True)
    )
    following = (
        select(func.min(queue.c.endpoint_id))
        .where(queue.c.endpoint_id > ring.c.endpoint_id)
        .scalar_subquery()
    )
    ring = ring.union_all(
        select(following, ring.c.step + literal_column("1")).where(
            ring.c.endpoint_id.is_not(None), ring.c.step < bindparam("steps")
        )
    )

    def due(lane: int) -> Any:
        return exists().where(
            queue.c.endpoint_id == ring.c.endpoint_id,
            queue.c.lane == literal(lane),
            queue.c.due_at <= _now(manual),
        )

    return (
        select(
            ring.c.endpoint_id,
            due(0).label("first"),
            due(1).label("again"),
            func.coalesce(_held(manual), False).label("held"),
        )
        .select_from(ring.outerjoin(endpoints, endpoints.c.id == ring.c.endpoint_id))
        .where(ring.c.endpoint_id.is_not(None))
        .order_by(ring.c.step)
    )


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claimed delivery with all that is needed to send it, as it was in that transaction."""

    delivery_id: str
    token: str
    claims: int
    claimed_at: datetime
    endpoint_id: str
    event_id: str
    tenant_id: str
    event_type: str
    status: str
    attempts: int
    attempts_before: int
    created_at: datetime
    body: bytes
    content_type: str
    trace_context: str | None
    published_at: datetime


def claim(
    connection: Connection,
    wants: Sequence[Want],
    token: str,
    lease: timedelta,
    now: datetime | None = None,
) -> list[Claimed]:
    """Claim due rows for ``lease`` under ``token``: of each lane at most what is wanted.

    Rows that another transaction holds are passed over. Must be committed before anything is
    sent.
    """
    if not wants:
        return []
    dialect = connection.dialect.name
    rows = [{"endpoint_id": w.endpoint_id, "lane": w.lane, "count": w.count} for w in wants]
    leased = connection.execute(
        _claim(dialect, now is not None),
        {
            "now": now,
            "lease": lease.total_seconds(),
            "token": token,
            **parameters(connection, _WANTS, rows),
        },
    ).all()
    if not leased:
        return []
    found = connection.execute(
        _details(dialect), parameters(connection, _IDS, [{"id": row.delivery_id} for row in leased])
    )
    details = {row.delivery_id: row._asdict() for row in found}
    orphans = [row.delivery_id for row in leased if row.delivery_id not in details]
    if orphans:  # their delivery was removed by hand: there is nothing to send or to say
        connection.execute(delete(queue).where(queue.c.delivery_id.in_(orphans)))
    return [
        Claimed(
            token=token,
            claims=row.claims,
            claimed_at=now or row.due_at - lease,
            **details[row.delivery_id],
        )
        for row in leased
        if row.delivery_id in details
    ]


@cache
def _claim(dialect: str, manual: bool) -> Executable:
    w = relation(dialect, "w", _WANTS)
    due = (
        queue.c.endpoint_id == w.c.endpoint_id,
        queue.c.lane == w.c.lane,
        queue.c.due_at <= _now(manual),
    )
    if dialect == "postgresql":
        rows = (
            select(queue.c.delivery_id)
            .where(*due)
            .order_by(queue.c.due_at)
            .limit(w.c.count)
            .with_for_update(skip_locked=True)
            .lateral("due")
        )
        picked = (
            select(rows.c.delivery_id)
            .select_from(w.join(rows, true()))
            # Tells the planner that few rows come out, so that it never joins with all of them.
            .limit(literal_column(str(MOST)))
        )
    else:
        # SQLite has no LATERAL, and writers take turns (BEGIN IMMEDIATE), so nothing is locked.
        oldest = queue.alias("oldest")
        rows_of_lane = (
            select(oldest.c.delivery_id)
            .where(
                oldest.c.endpoint_id == w.c.endpoint_id,
                oldest.c.lane == w.c.lane,
                oldest.c.due_at <= _now(manual),
            )
            .order_by(oldest.c.due_at)
            .limit(literal_column(str(MOST)))
            .correlate(w)
        )
        ranked = (
            select(
                queue.c.delivery_id,
                w.c.count,
                func.row_number()
                .over(partition_by=(w.c.endpoint_id, w.c.lane), order_by=queue.c.due_at)
                .label("rank"),
            )
            .select_from(w.join(queue, queue.c.delivery_id.in_(rows_of_lane)))
            .subquery("ranked")
        )
        picked = select(ranked.c.delivery_id).where(ranked.c.rank <= ranked.c.count)
    target = picked.cte("picked")
    return (
        update(queue)
        .where(queue.c.delivery_id.in_(select(target.c.delivery_id)))
        .values(
            due_at=later(
                bindparam("lease", type_=Float()),
                bindparam("now", type_=UtcDateTime()) if manual else None,
            ),
            claims=queue.c.claims + 1,
            lease_token=bindparam("token"),
        )
        .returning(queue.c.delivery_id, queue.c.claims, queue.c.due_at)
    )


@cache
def _details(dialect: str) -> Executable:
    ids = relation(dialect, "ids", _IDS)
    return (
        select(
            deliveries.c.id.label("delivery_id"),
            deliveries.c.endpoint_id,
            deliveries.c.event_id,
            deliveries.c.tenant_id,
            deliveries.c.event_type,
            deliveries.c.status,
            deliveries.c.attempts,
            deliveries.c.attempts_before,
            deliveries.c.created_at,
            events.c.body,
            events.c.content_type,
            events.c.trace_context,
            events.c.created_at.label("published_at"),
        )
        .select_from(ids)
        .join(deliveries, deliveries.c.id == ids.c.id)
        .join(events, events.c.id == deliveries.c.event_id)
    )
