"""The database: engines for both kinds, and one transaction per piece of work.

Store functions are synchronous and take a connection, so there is one of each; here is the one
place where they meet the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar
from uuid import uuid4

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from delivery_service.settings import Settings
from sender.sqlite import READ_ONLY, configure_sqlite

P = ParamSpec("P")
T = TypeVar("T")
Work = Callable[Concatenate[Connection, P], T]

CONNECT_TIMEOUT = 10.0
"""Seconds to wait for a connection to PostgreSQL before trying again."""

COMMAND_TIMEOUT = 60.0
"""Seconds after which a statement is given up: a connection that died silently must not hold a
worker for ever."""


class Database:
    """Runs pieces of work, each in its own transaction."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self._reader = engine.execution_options(**{READ_ONLY: True})

    async def write(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``work(connection, …)`` in a transaction and commit it.

        If the connection turns out to be dead before the commit, ``work`` is run once more on a
        fresh one: nothing of it has happened.
        """
        return await self._run(self.engine, work, *args, **kwargs)

    async def read(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``work(connection, …)``, which must not write. Otherwise like `write`."""
        return await self._run(self._reader, work, *args, **kwargs)

    @staticmethod
    async def _run(engine: AsyncEngine, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        # Cheaper than a ping before each transaction, and as good: a server that was restarted
        # has closed every connection in the pool, and the first to notice empties it.
        async with engine.connect() as connection:
            try:
                result = await connection.run_sync(work, *args, **kwargs)
            except DBAPIError as error:
                if not error.connection_invalidated:
                    raise
            else:
                await connection.commit()
                return result
        async with engine.begin() as connection:
            return await connection.run_sync(work, *args, **kwargs)

    async def close(self) -> None:
        """Close all connections."""
        await self.engine.dispose()


def open_database(
    settings: Settings, *, command_timeout: float | None = COMMAND_TIMEOUT
) -> Database:
    """Make the engine that the settings ask for. Nothing is connected yet.

    ``command_timeout``: seconds that a statement may take on PostgreSQL; None for no limit, which
    is for migrations.
    """
    options: dict[str, Any] = {"pool_size": settings.database_pool_size, "max_overflow": 0}
    if not settings.is_sqlite:
        options["connect_args"] = _asyncpg_arguments(settings, command_timeout)
    engine = create_async_engine(settings.async_database_url, **options)
    configure_sqlite(engine)
    if settings.database_schema is not None:
        engine = engine.execution_options(schema_translate_map={None: settings.database_schema})
    return Database(engine)


def _asyncpg_arguments(settings: Settings, command_timeout: float | None) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "timeout": CONNECT_TIMEOUT,
        "command_timeout": command_timeout,
        "server_settings": {"application_name": "surehook", "jit": "off"},
    }
    if settings.pgbouncer:
        arguments |= {
            "statement_cache_size": 0,
            "prepared_statement_cache_size": 0,
            "prepared_statement_name_func": lambda: f"surehook_{uuid4().hex}",
        }
        # PgBouncer refuses parameters that it does not track.
        arguments["server_settings"] = {"application_name": "surehook"}
    return arguments
