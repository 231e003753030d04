"""Everything that is encrypted under ``encryption_keys``, column by column, for rotating them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import Column, Connection, bindparam, func, select, update

from sender.tables import SEALED, metadata


def columns() -> list[Column[Any]]:
    """Return every sealed column of every table."""
    return [
        column
        for table in metadata.sorted_tables
        for column in table.columns
        if column.info.get(SEALED)
    ]


def count(connection: Connection) -> int:
    """Number of sealed values."""
    return sum(
        connection.execute(select(func.count(column)).select_from(column.table)).scalar_one()
        for column in columns()
    )


def after(
    connection: Connection, column: Column[Any], row_id: str, limit: int
) -> list[tuple[str, bytes]]:
    """Return up to ``limit`` rows' id and sealed value, in the order of ids, after ``row_id``."""
    key = column.table.c.id
    found = connection.execute(
        select(key, column).where(key > row_id, column.is_not(None)).order_by(key).limit(limit)
    )
    return [(row[0], bytes(row[1])) for row in found]


def replace(
    connection: Connection,
    column: Column[Any],
    row_ids: Sequence[str],
    new: Callable[[bytes], bytes | None],
) -> int:
    """Replace sealed values by what ``new`` makes of them (None leaves one as it is); return how
    many were replaced.

    Rows that another transaction holds are passed over, and so nobody ever waits for this one
    while it waits for them; what they are changed to is seen by whoever looks again. The plain
    text stays the same, so no version is counted up and no worker loads anything anew.
    """
    key = column.table.c.id
    locked = connection.execute(
        select(key, column)
        .where(key.in_(row_ids), column.is_not(None))
        .order_by(key)
        .with_for_update(skip_locked=True)
    ).all()
    changes: list[Mapping[str, Any]] = [
        {"row_id": row[0], "sealed": value}
        for row in locked
        if (value := new(bytes(row[1]))) is not None
    ]
    if changes:
        connection.execute(
            update(column.table)
            .where(key == bindparam("row_id"))
            .values({column: bindparam("sealed")}),
            changes,
        )
    return len(changes)
