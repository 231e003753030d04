"""The queue: what is still to do. The only module that knows how work is claimed.

A claim is a lease: ``due_at`` moves to the lease's end and a fresh token is written. A worker
that dies needs no reaper, its rows are simply due again. Every later change names the token, so
a worker that comes back late changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import (
    Connection,
    Executable,
    Float,
    Integer,
    Select,
    Text,
    and_,
    bindparam,
    delete,
    func,
    literal,
    literal_column,
    or_,
    select,
    true,
    tuple_,
    update,
)

from delivery_service.policy.sharing import Lane, Want
from sender.rows import Columns, parameters, relation
from sender.tables import deliveries, endpoints, events, queue
from sender.types import UtcDateTime, later, moment

PEEK = 200
"""Oldest due rows looked at first: if there are fewer, they are all there is to do."""

STEPS = 200
"""Endpoints that one scan passes at most, about 5 µs each."""

MOST = 1000
"""Rows that one claim can take."""

MOST_OF_LANE = 200
"""Rows that one claim can take of one lane."""

_ONE: Any = literal_column("1")

_WANTS: Columns = (("endpoint_id", Text()), ("lane", Integer()), ("count", Integer()))
_IDS: Columns = (("id", Text()),)


@dataclass(frozen=True, slots=True)
class Scan:
    """Lanes with due work, oldest or next in turn first. ``cursor`` is where to go on; ``caps``
    has the limits of requests in flight that endpoints have of their own."""

    lanes: tuple[Lane, ...]
    cursor: str
    caps: Mapping[str, int]


def scan(connection: Connection, cursor: str, now: datetime | None = None) -> Scan:
    """Find lanes that have due work and are not held back.

    Where little is due, a look at the oldest due rows finds it all. Where much is, they may all
    be one endpoint's; then the endpoints are also visited in turn from ``cursor``, by a loose
    scan of the index that takes one step for each endpoint, however many rows it has.
    """
    kind = (connection.dialect.name, now is not None)
    oldest = connection.execute(_peek(*kind), {"now": now, "peek": PEEK}).all()
    lanes = [(row.endpoint_id, row.lane) for row in oldest if not row.held]
    caps = {row.endpoint_id: row.cap for row in oldest if row.cap}
    if sum(row.rows for row in oldest) < PEEK:
        return Scan(tuple(lanes), cursor, caps)
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
    caps |= {row.endpoint_id: row.cap for row in visited if row.cap}
    return Scan(tuple(dict.fromkeys(in_turn + lanes)), end, caps)


def _now(manual: bool) -> Any:
    return moment(bindparam("now", type_=UtcDateTime()) if manual else None)


def _held(endpoint_id: Any, manual: bool) -> Any:
    """Whether an endpoint is held back: paused by its circuit or receiver, or by its rate limit.

    Endpoints that are not enabled are not held: the worker ends their deliveries. A subquery of
    its own, because a join with many endpoints tempts the planner to read them all.
    """
    now = _now(manual)
    held = select(
        and_(
            endpoints.c.status == "enabled",
            endpoints.c.deleted_at.is_(None),
            or_(
                func.coalesce(endpoints.c.paused_until > now, False),
                func.coalesce(endpoints.c.rate_next_at > now, False),
            ),
        )
    ).where(endpoints.c.id == endpoint_id)
    return func.coalesce(held.scalar_subquery(), False).label("held")


def _cap(endpoint_id: Any) -> Any:
    cap = select(endpoints.c.max_in_flight).where(endpoints.c.id == endpoint_id)
    return cap.scalar_subquery().label("cap")


@cache
def _peek(_dialect: str, manual: bool) -> Executable:
    oldest = (
        select(queue.c.endpoint_id, queue.c.lane, queue.c.due_at)
        .where(queue.c.due_at <= _now(manual))
        .order_by(queue.c.due_at)
        .limit(bindparam("peek"))
        .subquery("oldest")
    )
    lanes = (
        select(
            oldest.c.endpoint_id,
            oldest.c.lane,
            func.count().label("rows"),
            func.min(oldest.c.due_at).label("since"),
        )
        .group_by(oldest.c.endpoint_id, oldest.c.lane)
        .subquery("lanes")
    )
    return select(
        lanes.c.endpoint_id,
        lanes.c.lane,
        lanes.c.rows,
        _held(lanes.c.endpoint_id, manual),
        _cap(lanes.c.endpoint_id),
    ).order_by(lanes.c.since)


def _oldest_due(what: Any, of: Any, lane: Any, manual: bool) -> Select[Any]:
    """``what`` of the due rows of a lane of ``of.endpoint_id``, oldest first.

    A range over whole index entries, in their order, can only be read from the lane's index.
    Equality and ``ORDER BY due_at`` could be read from the other one as well, through the rows of
    all endpoints, and EXISTS or min() from the table; with statistics that are out of date, that
    is what PostgreSQL did (tests/store/test_plans.py).
    """
    entry = (queue.c.endpoint_id, queue.c.lane, queue.c.due_at)
    return (
        select(what)
        .where(
            tuple_(*entry[:2]) >= tuple_(of.c.endpoint_id, lane),
            tuple_(*entry) <= tuple_(of.c.endpoint_id, lane, _now(manual)),
        )
        .order_by(*entry)
    )


@cache
def _visit(_dialect: str, manual: bool) -> Executable:
    ring = (
        select(func.min(queue.c.endpoint_id).label("endpoint_id"), _ONE.label("step"))
        .where(queue.c.endpoint_id > bindparam("cursor"))
        .cte("ring", recursive=True)
    )
    following = (
        select(func.min(queue.c.endpoint_id))
        .where(queue.c.endpoint_id > ring.c.endpoint_id)
        .scalar_subquery()
    )
    ring = ring.union_all(
        select(following, ring.c.step + _ONE).where(
            ring.c.endpoint_id.is_not(None), ring.c.step < bindparam("steps")
        )
    )

    def due(lane: int) -> Any:
        one = _oldest_due(_ONE, ring, literal(lane), manual).limit(_ONE).correlate(ring)
        return func.coalesce(one.scalar_subquery(), _ONE - _ONE) == _ONE

    return (
        select(
            ring.c.endpoint_id,
            due(0).label("first"),
            due(1).label("again"),
            _held(ring.c.endpoint_id, manual),
            _cap(ring.c.endpoint_id),
        )
        .where(ring.c.endpoint_id.is_not(None))
        .order_by(ring.c.step)
    )


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claimed delivery with all that is needed to send it, as it was in that transaction."""

    delivery_id: str
    endpoint_id: str
    event_id: str
    tenant_id: str
    event_type: str
    status: str
    attempts: int
    attempts_before: int
    body: bytes
    content_type: str
    trace_context: str | None
    published_at: datetime
    token: str
    claims: int
    claimed_at: datetime


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
    details: dict[str, Any] = {row.delivery_id: row for row in found}
    orphans = [row.delivery_id for row in leased if row.delivery_id not in details]
    if orphans:  # their delivery was removed by hand: there is nothing to send or to say
        connection.execute(delete(queue).where(queue.c.delivery_id.in_(orphans)))
    return [
        Claimed(*(*details[row.delivery_id], token, row.claims, now or row.due_at - lease))
        for row in leased
        if row.delivery_id in details
    ]


@cache
def _claim(dialect: str, manual: bool) -> Executable:
    picked = _picked_postgresql(manual) if dialect == "postgresql" else _picked_sqlite(manual)
    return (
        update(queue)
        .where(picked)
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


def _picked_postgresql(manual: bool) -> Any:
    """The due rows of each lane that is wanted, locked one by one as the outer LIMIT asks.

    The queue changes faster than its statistics, so the planner is left no choice that could be
    bad. The inner, constant LIMIT is there because an unknown one is taken for a tenth of the
    table. And ctid, not the key, leads back to the rows: a join might read them all.
    """
    w = relation("postgresql", "w", _WANTS)
    oldest = (
        _oldest_due(literal_column("ctid").label("tid"), w, w.c.lane, manual)
        .limit(literal_column(str(MOST_OF_LANE)))
        .with_for_update(skip_locked=True)
        .correlate(w)
        .lateral("oldest")
    )
    due = select(oldest.c.tid).limit(w.c.count).correlate(w).lateral("due")
    picked = select(due.c.tid).select_from(w.join(due, true())).scalar_subquery()
    return literal_column("ctid") == func.any(func.array(picked))


def _picked_sqlite(manual: bool) -> Any:
    # SQLite has no LATERAL, and writers take turns (BEGIN IMMEDIATE), so nothing is locked.
    w = relation("sqlite", "w", _WANTS)
    rows = (
        _oldest_due(queue.c.delivery_id, w, w.c.lane, manual)
        .limit(literal_column(str(MOST_OF_LANE)))
        .correlate(w)
    )
    rank = func.row_number().over(partition_by=(w.c.endpoint_id, w.c.lane), order_by=queue.c.due_at)
    ranked = (
        select(queue.c.delivery_id, w.c.count, rank.label("rank"))
        .select_from(w.join(queue, queue.c.delivery_id.in_(rows)))
        .subquery("ranked")
    )
    return queue.c.delivery_id.in_(
        select(ranked.c.delivery_id).where(ranked.c.rank <= ranked.c.count)
    )


@cache
def _details(dialect: str) -> Executable:
    """The columns are the first fields of `Claimed`, in their order."""
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
            events.c.body,
            events.c.content_type,
            events.c.trace_context,
            events.c.created_at.label("published_at"),
        )
        .select_from(ids)
        .join(deliveries, deliveries.c.id == ids.c.id)
        .join(events, events.c.id == deliveries.c.event_id)
    )
