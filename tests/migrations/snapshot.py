"""Everything that a database's catalogue says about our objects, to compare two databases."""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import Connection, text

_RELATIONS = """
SELECT c.relname, c.relkind::text, coalesce(c.reloptions::text, '') AS options,
       coalesce(pg_get_indexdef(i.indexrelid), '') AS definition
FROM pg_class c LEFT JOIN pg_index i ON i.indexrelid = c.oid
WHERE c.relnamespace = to_regnamespace(:schema) AND c.relkind IN ('r', 'i', 'S', 'v')
ORDER BY c.relname
"""
_COLUMNS = """
SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
       coalesce(pg_get_expr(d.adbin, d.adrelid), '') AS "default",
       coalesce(l.collname::text, '') AS "collation"
FROM pg_class c
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
LEFT JOIN pg_collation l ON l.oid = a.attcollation
WHERE c.relnamespace = to_regnamespace(:schema) AND c.relkind = 'r'
ORDER BY c.relname, a.attnum
"""
_CONSTRAINTS = """
SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid)
FROM pg_constraint WHERE connamespace = to_regnamespace(:schema) ORDER BY 1, 2
"""


def snapshot(connection: Connection, schema: str = "public") -> list[tuple[Any, ...]]:
    """Tables, columns, indexes, constraints and storage parameters, without the version table."""
    if connection.dialect.name == "sqlite":
        found = connection.execute(text("SELECT type, name, sql FROM sqlite_master ORDER BY name"))
        rows = [(row[0], row[1], _normalised(row[2])) for row in found]
    else:
        rows = [
            tuple(row)
            for query in (_RELATIONS, _COLUMNS, _CONSTRAINTS)
            for row in connection.execute(text(query), {"schema": schema})
        ]
    return [row for row in rows if not any("alembic_version" in str(value) for value in row)]


def _normalised(sql: str | None) -> str:
    """The statement without the layout, its columns and constraints in the order of the text."""
    return re.sub(r"\s+", "", (sql or "").replace('"', ""))
