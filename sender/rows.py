"""Many rows of parameters in one statement: `unnest` on PostgreSQL, `json_each` on SQLite.

One statement whatever the number of rows, with one cached plan, at a fifth of the cost of
sending the rows one by one. PostgreSQL gets each column as the text of an array, which is joined
here in less time than any driver takes to look at the elements (docs/decisions/0014-array-texts.md
has the figures).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import (
    Boolean,
    Connection,
    Float,
    FromClause,
    Insert,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    bindparam,
    cast,
    column,
    func,
    select,
    type_coerce,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.types import TypeEngine

from sender.types import UtcDateTime, as_utc

PARAMETER = "rows_"

_BETWEEN = "\x1f"
"""A unit separator, which hardly occurs in texts."""

Rows = Sequence[Mapping[str, Any]]

Columns = tuple[tuple[str, TypeEngine[Any]], ...]


def relation(dialect: str, name: str, columns: Columns) -> FromClause:
    """A FROM element ``name`` with ``columns``, filled by `parameters` at execution."""
    if dialect == "postgresql":
        arrays = [
            cast(bindparam(PARAMETER + label, type_=Text()), ARRAY(_element(kind), dimensions=1))
            for label, kind in columns
        ]
        # The names and types of the columns are those of the arrays' elements.
        return (
            func.unnest(*arrays)
            .table_valued(*[column(label, kind) for label, kind in columns])
            .render_derived(name=name)
        )
    each = func.json_each(bindparam(PARAMETER, type_=String())).table_valued("value", name="each")
    return (
        select(
            *[
                type_coerce(func.json_extract(each.c.value, f"$[{position}]"), kind).label(label)
                for position, (label, kind) in enumerate(columns)
            ]
        )
        .select_from(each)
        .subquery(name)
    )


def parameters(connection: Connection, columns: Columns, rows: Rows) -> dict[str, Any]:
    """The parameters that fill a `relation` with ``rows``. Values must be JSON's or None, except
    on PostgreSQL."""
    if connection.dialect.name == "postgresql":
        return {
            PARAMETER + name: _array_text(kind, [row[name] for row in rows])
            for name, kind in columns
        }
    names = [label for label, _ in columns]
    return {PARAMETER: json.dumps([[row[name] for name in names] for row in rows])}


def _element(kind: TypeEngine[Any]) -> TypeEngine[Any]:
    """The type without its collation, which the type of an array can't have."""
    return Text() if isinstance(kind, Text) else kind


def _array_text(kind: TypeEngine[Any], values: Sequence[Any]) -> str:
    """PostgreSQL's text of an array of ``values`` (its manual, section 8.15.6)."""
    if isinstance(kind, Integer | Float | Boolean):
        return f"{{{','.join(['NULL' if v is None else str(v) for v in values])}}}"
    if isinstance(kind, LargeBinary):
        # Long ones at times: looked at and copied as little as possible.
        hexes = ["NULL" if v is None else f'"\\\\x{v.hex()}"' for v in values]
        return f"{{{','.join(hexes)}}}"
    if isinstance(kind, UtcDateTime):
        values = [None if v is None else as_utc(v).isoformat() for v in values]
    if None not in values:
        joined = _BETWEEN.join(values)
        if joined.count(_BETWEEN) == len(values) - 1:
            # The whole column at once.
            escaped = joined.replace("\\", "\\\\").replace('"', '\\"')
            return '{"' + escaped.replace(_BETWEEN, '","') + '"}'
    return f"{{{','.join([_quoted(value) for value in values])}}}"


def _quoted(value: str | None) -> str:
    if value is None:
        return "NULL"
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


@cache
def insert_from(table: Table, names: tuple[str, ...]) -> Insert:
    """PostgreSQL: insert what `unnested` gives, into the columns ``names`` of ``table``."""
    rows = relation("postgresql", "new", columns_of(table, names))
    return table.insert().from_select(list(names), select(*(rows.c[name] for name in names)))


def columns_of(table: Table, names: tuple[str, ...]) -> Columns:
    """The columns of a relation like those of a table."""
    return tuple((name, table.c[name].type) for name in names)


def insert_rows(connection: Connection, table: Table, rows: Rows) -> None:
    """Insert rows that all have the same keys, in one statement."""
    if not rows:
        return
    if connection.dialect.name != "postgresql":
        connection.execute(table.insert(), rows)
        return
    names = tuple(rows[0])
    values = parameters(connection, columns_of(table, names), rows)
    connection.execute(insert_from(table, names), values)
