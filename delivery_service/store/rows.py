"""Many rows of parameters in one statement: `unnest` on PostgreSQL, `json_each` on SQLite.

One statement whatever the number of rows, with one cached plan, at a fifth of the cost of
sending the rows one by one (docs/decisions/0006-asyncpg.md has the figures).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, FromClause, String, bindparam, column, func, select, type_coerce
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.types import TypeEngine

PARAMETER = "rows_"

Columns = tuple[tuple[str, TypeEngine[Any]], ...]


def relation(dialect: str, name: str, columns: Columns) -> FromClause:
    """A FROM element ``name`` with ``columns``, filled by `parameters` at execution."""
    if dialect == "postgresql":
        arrays = [bindparam(PARAMETER + label, type_=ARRAY(kind)) for label, kind in columns]
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


def parameters(
    connection: Connection, columns: Columns, rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The parameters that fill a `relation` with ``rows``. Values must be JSON's or None."""
    names = [label for label, _ in columns]
    if connection.dialect.name == "postgresql":
        return {PARAMETER + name: [row[name] for row in rows] for name in names}
    return {PARAMETER: json.dumps([[row[name] for name in names] for row in rows])}
