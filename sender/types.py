"""Column types and SQL expressions that mean the same on PostgreSQL and SQLite.

Times are aware UTC datetimes in Python on both databases. SQLite has no time zones: there they
are stored as text of a fixed width, so that comparing text compares moments.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import DateTime, Dialect, Float, Text, literal
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator


def as_utc(value: datetime) -> datetime:
    """Return an aware datetime in UTC. Naive values are refused: their moment would be a guess."""
    if value.tzinfo is None:
        raise ValueError(f"{value!r} has no time zone; pass an aware datetime")
    return value.astimezone(UTC)


def as_read(value: datetime) -> datetime:
    """Return a moment that was read from either database as an aware datetime in UTC."""
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC datetime."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        value = as_utc(value)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else as_read(value)


Id = Text().with_variant(Text(collation="C"), "postgresql")
"""Ids sort by creation time, but only bytewise: PostgreSQL needs C collation for that."""


Seconds = float | ColumnElement[Any]
Moment = datetime | ColumnElement[datetime]


class later(FunctionElement[datetime]):  # noqa: N801 - reads as an SQL function
    """``base`` plus ``seconds``; the database's clock where ``base`` is None.

    One expression for both, so that production compares nothing but the database's clock and
    tests can pass a moment of their own. SQLite's result has milliseconds.
    """

    type = UtcDateTime()
    name = "later"
    inherit_cache = True

    def __init__(self, seconds: Seconds = 0.0, base: Moment | None = None) -> None:
        if base is None:
            base = _database_now()
        elif isinstance(base, datetime):
            base = literal(base, UtcDateTime())
        if not isinstance(seconds, ColumnElement):
            seconds = literal(float(seconds), Float())
        super().__init__(base, seconds)


class _database_now(FunctionElement[datetime]):  # noqa: N801
    type = UtcDateTime()
    name = "database_now"
    inherit_cache = True


@compiles(_database_now)
def _now(_element: _database_now, _compiler: SQLCompiler, **_kw: Any) -> str:
    # Stable within a statement, so it can be an index condition (clock_timestamp() can't), and
    # not frozen at the start of a long transaction (now() is).
    return "statement_timestamp()"


@compiles(_database_now, "sqlite")
def _now_sqlite(_element: _database_now, _compiler: SQLCompiler, **_kw: Any) -> str:
    return "'now'"


@compiles(later)
def _later(element: later, compiler: SQLCompiler, **kw: Any) -> str:
    base, seconds = element.clauses
    return (
        f"({compiler.process(base, **kw)} + {compiler.process(seconds, **kw)}"
        " * interval '1 second')"
    )


@compiles(later, "sqlite")
def _later_sqlite(element: later, compiler: SQLCompiler, **kw: Any) -> str:
    base, seconds = element.clauses
    return (
        f"(strftime('%Y-%m-%d %H:%M:%f', {compiler.process(base, **kw)},"
        f" printf('%+.6f seconds', {compiler.process(seconds, **kw)})) || '000')"
    )


def moment(now: Moment | None) -> ColumnElement[datetime]:
    """``now``, or the database's clock where it is None."""
    if now is None:
        return later()
    return now if isinstance(now, ColumnElement) else literal(now, UtcDateTime())
