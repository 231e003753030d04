"""The queue: what is still to do. The only module that knows how work is claimed.

A claim is a lease: ``due_at`` moves to the lease's end and a fresh token is written. A worker
that dies needs no reaper, its rows are simply due again. Every later change names the token, so
a worker that comes back late changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import (
    Connection,
    Executable,
    Float,
    Integer,
    Text,
    bindparam,
    delete,
    func,
    literal_column,
    select,
    true,
    type_coerce,
    update,
)

from delivery_service.policy.sharing import Want
from delivery_service.store.due import oldest_due
from sender.rows import Columns, parameters, relation
from sender.tables import deliveries, events, queue
from sender.types import UtcDateTime, as_read, later

MOST = 1000
"""Rows that one claim can take."""

MOST_OF_LANE = 200
"""Rows that one claim can take of one lane."""

_WANTS: Columns = (("endpoint_id", Text()), ("lane", Integer()), ("count", Integer()))
_IDS: Columns = (("id", Text()),)


class Claimed(NamedTuple):
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
        _details(dialect), parameters(connection, _IDS, [{"id": id_} for id_, _, _ in leased])
    )
    details: dict[str, Any] = {row[0]: row for row in found.all()}
    # All rows are leased at the same moment.
    claimed_at = now or as_read(leased[0].due_at) - lease
    orphans = [id_ for id_, _, _ in leased if id_ not in details]
    if orphans:  # their delivery was removed by hand: there is nothing to send or to say
        connection.execute(delete(queue).where(queue.c.delivery_id.in_(orphans)))
    return [
        Claimed._make((*details[id_], token, claims, claimed_at))
        for id_, claims, _ in leased
        if id_ in details
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
        # As the driver gives it, because one row of many is looked at.
        .returning(
            queue.c.delivery_id, queue.c.claims, type_coerce(queue.c.due_at, UtcDateTime.impl)
        )
    )


def _picked_postgresql(manual: bool) -> Any:
    """The due rows of each lane that is wanted, locked one by one as the outer LIMIT asks.

    The queue changes faster than its statistics, so the planner is left no choice that could be
    bad. The inner, constant LIMIT is there because an unknown one is taken for a tenth of the
    table. And ctid, not the key, leads back to the rows: a join might read them all.
    """
    w = relation("postgresql", "w", _WANTS)
    oldest = (
        oldest_due(literal_column("ctid").label("tid"), w, w.c.lane, manual)
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
        oldest_due(queue.c.delivery_id, w, w.c.lane, manual)
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
        )
        .select_from(ids)
        .join(deliveries, deliveries.c.id == ids.c.id)
        .join(events, events.c.id == deliveries.c.event_id)
    )
