"""Ending leases: what became of claimed work goes back into the queue, or out of it.

Each change names the lease's token. What it returns is the ids whose lease was still its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import (
    Connection,
    Executable,
    Float,
    Integer,
    Text,
    bindparam,
    delete,
    select,
    tuple_,
    update,
)

from sender.rows import Columns, parameters, relation
from sender.tables import queue
from sender.types import UtcDateTime, later

_LEASES: Columns = (("delivery_id", Text()), ("token", Text()))
_DELAYS: Columns = (*_LEASES, ("delay", Float()), ("claims", Integer()))

Rows = Sequence[Mapping[str, Any]]


def remove(connection: Connection, leases: Rows) -> set[str]:
    """Take finished work out of the queue. ``leases``: ``delivery_id`` and ``token``."""
    if not leases:
        return set()
    statement = _remove(connection.dialect.name)
    return set(connection.scalars(statement, parameters(connection, _LEASES, leases)))


def reschedule(connection: Connection, retries: Rows, now: datetime | None = None) -> set[str]:
    """Make rows due again after ``delay`` seconds, as retries, with no lease and no claims
    counted. ``retries``: ``delivery_id``, ``token`` and ``delay``."""
    rows = [{**retry, "claims": None} for retry in retries]
    return _put_back(connection, rows, now, attempted=True)


def give_back(connection: Connection, leases: Rows, now: datetime | None = None) -> set[str]:
    """Return leases that were not used, as if never claimed, due after ``delay`` seconds.

    ``leases``: ``delivery_id``, ``token``, ``delay`` and ``claims`` as claimed.
    """
    rows = [{**lease, "claims": lease["claims"] - 1} for lease in leases]
    return _put_back(connection, rows, now, attempted=False)


def _put_back(
    connection: Connection, rows: Rows, now: datetime | None, *, attempted: bool
) -> set[str]:
    if not rows:
        return set()
    statement = _reschedule(connection.dialect.name, now is not None, attempted)
    values = {"now": now, **parameters(connection, _DELAYS, rows)}
    return set(connection.scalars(statement, values))


@cache
def _remove(dialect: str) -> Executable:
    leases = relation(dialect, "leases", _LEASES)
    return (
        delete(queue)
        .where(
            tuple_(queue.c.delivery_id, queue.c.lease_token).in_(
                select(leases.c.delivery_id, leases.c.token)
            )
        )
        .returning(queue.c.delivery_id)
    )


@cache
def _reschedule(dialect: str, manual: bool, attempted: bool) -> Executable:
    leases = relation(dialect, "leases", _DELAYS)
    now = bindparam("now", type_=UtcDateTime()) if manual else None
    return (
        update(queue)
        .where(queue.c.delivery_id == leases.c.delivery_id, queue.c.lease_token == leases.c.token)
        .values(
            due_at=later(leases.c.delay, now),
            lease_token=None,
            claims=0 if attempted else leases.c.claims,
            **({"lane": 1} if attempted else {}),
        )
        .returning(queue.c.delivery_id)
    )
