"""Databases that hold Surehook's tables, and engines on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, func, make_url, select
from sqlalchemy.pool import NullPool

from sender.sqlite import configure_sqlite
from sender.tables import deliveries, events, metadata, queue
from tests.support.postgres import Postgres

SYNC_DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg"}


def sync_engine(url: str, **options: Any) -> Engine:
    """An engine on the synchronous driver for the database of ``url``."""
    parsed = make_url(url)
    parsed = parsed.set(drivername=SYNC_DRIVERS[parsed.get_backend_name()])
    engine = create_engine(parsed, **{"poolclass": NullPool, **options})
    configure_sqlite(engine)
    return engine


def create_tables(url: str) -> None:
    """Create the tables in an empty database."""
    engine = sync_engine(url)
    metadata.create_all(engine)
    engine.dispose()


def postgresql_with_tables(postgres: Postgres) -> str:
    """Name of a new PostgreSQL database that holds the tables."""
    template = postgres.template("tables", lambda name: create_tables(postgres.url(name)))
    return postgres.create_database(template=template)


def stored(connection: Connection) -> tuple[int, int, int]:
    """How many events, deliveries and queue rows there are."""
    return tuple(  # type: ignore[return-value]
        connection.scalar(select(func.count()).select_from(table)) or 0
        for table in (events, deliveries, queue)
    )


@contextmanager
def statements(engine: Engine) -> Iterator[list[str]]:
    """Collect the statements that an engine sends."""
    seen: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        seen.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", note)
