"""Attempts: one row for each request, never changed afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import Connection, Executable, Integer, Text, bindparam, func, select, tuple_

from sender.rows import Columns, insert_rows, parameters, relation
from sender.tables import attempts
from wire.errors import WireError
from wire.ids import ATTEMPT, first_id, parse_id


def insert(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Store attempts. ``rows`` have a value for every column of the table."""
    insert_rows(connection, attempts, rows)


def existing(connection: Connection, attempt_ids: Sequence[str]) -> set[str]:
    """Return those of the ids that are stored."""
    return set(connection.scalars(select(attempts.c.id).where(attempts.c.id.in_(attempt_ids))))


def of_delivery(connection: Connection, delivery_id: str) -> list[dict[str, Any]]:
    """Return the attempts of a delivery, in order; late ones beside those of their number."""
    rows = connection.execute(
        select(attempts)
        .where(attempts.c.delivery_id == delivery_id)
        .order_by(attempts.c.number, attempts.c.started_at, attempts.c.id)
    )
    return [row._asdict() for row in rows]


def page(
    connection: Connection, delivery_id: str, *, limit: int, after: str | None = None
) -> list[dict[str, Any]]:
    """Return up to ``limit`` attempts of a delivery, in order, from after a `position` on."""
    query = (
        select(attempts)
        .where(attempts.c.delivery_id == delivery_id)
        .order_by(attempts.c.number, attempts.c.id)
        .limit(limit)
    )
    if after is not None:
        number, attempt_id = _parse_position(after)
        query = query.where(
            attempts.c.number >= number,
            tuple_(attempts.c.number, attempts.c.id) > (number, attempt_id),
        )
    return [row._asdict() for row in connection.execute(query)]


def position(row: Mapping[str, Any]) -> str:
    """The place of an attempt in the order of `page`, as text."""
    return f"{row['number']}:{row['id']}"


def check_position(text: str) -> str:
    """Return text that is a `position`, or raise `wire.errors.WireError`."""
    _parse_position(text)
    return text


def _parse_position(text: str) -> tuple[int, str]:
    number, _, attempt_id = text.partition(":")
    if not number.isascii() or not number.isdigit() or len(number) > 9:
        raise WireError("not a position")
    return int(number), parse_id(attempt_id, ATTEMPT)


_BUCKETS: Columns = (("number", Integer()), ("first", Text()), ("last", Text()))


@dataclass(frozen=True, slots=True)
class Counted:
    """Attempts of one kind, and the seconds that they took together."""

    attempts: int
    seconds: float


def count(
    connection: Connection, endpoint_id: str, starts: Sequence[datetime], step: timedelta
) -> dict[datetime, dict[str, Counted]]:
    """Count the attempts of an endpoint by kind, in each bucket that begins at one of ``starts``
    and is ``step`` long. Buckets without attempts are left out.

    Ids begin with the time that an attempt started at, so a bucket is a range of an index.
    """
    rows = [
        {
            "number": number,
            "first": first_id(ATTEMPT, start),
            "last": first_id(ATTEMPT, start + step),
        }
        for number, start in enumerate(starts)
    ]
    statement = _count(connection.dialect.name)
    values = {"endpoint_id": endpoint_id, **parameters(connection, _BUCKETS, rows)}
    found: dict[datetime, dict[str, Counted]] = {}
    for row in connection.execute(statement, values):
        counted = Counted(row.attempts, row.seconds)
        found.setdefault(starts[row.number], {})[row.kind] = counted
    return found


@cache
def _count(dialect: str) -> Executable:
    buckets = relation(dialect, "buckets", _BUCKETS)
    return (
        select(
            buckets.c.number,
            attempts.c.kind,
            func.count().label("attempts"),
            func.sum(attempts.c.duration).label("seconds"),
        )
        .select_from(buckets)
        .join(
            attempts,
            (attempts.c.endpoint_id == bindparam("endpoint_id"))
            & (attempts.c.id >= buckets.c.first)
            & (attempts.c.id < buckets.c.last),
        )
        .group_by(buckets.c.number, attempts.c.kind)
    )
