"""The database: engines for both kinds, and one transaction per piece of work.

Store functions are synchronous and take a connection, so there is one of each; here is the one
place where they meet the event loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar
from uuid import uuid4

from sqlalchemy import Connection, ExceptionContext, event
from sqlalchemy.exc import DBAPIError, InvalidatePoolError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from delivery_service.settings import Settings
from sender.sqlite import READ_ONLY, configure_sqlite

P = ParamSpec("P")
T = TypeVar("T")
Work = Callable[Concatenate[Connection, P], T]

CONNECT_TIMEOUT = 10.0
"""Seconds to wait for a connection to PostgreSQL before trying again."""

PING_TIMEOUT = 5.0
"""Seconds for a connection from the pool to show that it is alive."""

PING_AFTER = 2.0
"""Seconds of idleness after which a connection has to show it."""

LONGEST_TRANSACTION = 2
"""Times `database_timeout` that one transaction may take."""

_LIMIT_TRANSACTIONS = (
    "SELECT set_config(name, $1, false) FROM pg_settings WHERE name = 'transaction_timeout'"
)

_KEEPALIVE = {
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
"""The server gives a client up that its network has not heard of for 25 s."""

LAST_USED = "surehook_last_used"


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


def open_database(settings: Settings, *, time_limit: bool = True) -> Database:
    """Make the engine that the settings ask for. Nothing is connected yet.

    ``time_limit``: whether `database_timeout` holds, which migrations can't keep.
    """
    options: dict[str, Any] = {"pool_size": settings.database_pool_size, "max_overflow": 0}
    if not settings.is_sqlite:
        options["connect_args"] = _asyncpg_arguments(settings, time_limit=time_limit)
    engine = create_async_engine(settings.async_database_url, **options)
    configure_sqlite(engine)
    if not settings.is_sqlite:
        _leave_dead_connections(engine)
        if time_limit and not settings.pgbouncer:
            _limit_transactions(engine, settings.database_timeout.total_seconds())
    if settings.database_schema is not None:
        engine = engine.execution_options(schema_translate_map={None: settings.database_schema})
    return Database(engine)


def _leave_dead_connections(engine: AsyncEngine) -> None:
    """Where one connection has died, trust none that was opened before.

    A network that forgets connections without a word takes all of them. SQLAlchemy's own
    `pool_pre_ping` has no time limit but that of statements, and knows a time-out for no
    disconnection, so each dead connection would cost that long again; and it would ping before
    every transaction, where those that were idle for a while are enough.
    """

    @event.listens_for(engine.sync_engine, "checkin")
    def _used(_connection: Any, record: Any) -> None:
        record.info[LAST_USED] = time.monotonic()

    @event.listens_for(engine.sync_engine, "checkout")
    def _ping(connection: Any, record: Any, _proxy: Any) -> None:
        if time.monotonic() - record.info.get(LAST_USED, 0.0) < PING_AFTER:
            return
        try:
            connection.run_async(lambda raw: raw.fetchrow(";", timeout=PING_TIMEOUT))
        except Exception as error:
            raise InvalidatePoolError from error

    @event.listens_for(engine.sync_engine, "handle_error")
    def _timed_out(context: ExceptionContext) -> None:
        if isinstance(context.original_exception, TimeoutError):
            context.is_disconnect = True


def _limit_transactions(engine: AsyncEngine, timeout: float) -> None:
    """Have the server end transactions whose client was lost in the middle of a statement.

    The server takes such a session for active (its driver has sent a statement to be prepared, and
    not yet what to do with it), so that the limit of idle ones does not hold, and everybody who
    tries again waits for its locks. PostgreSQL before 17 has no limit for that; there it is up to
    TCP to notice.
    """
    limit = f"{LONGEST_TRANSACTION * timeout * 1000:.0f}ms"

    @event.listens_for(engine.sync_engine, "connect")
    def _limit(connection: Any, _record: Any) -> None:
        connection.run_async(lambda raw: raw.execute(_LIMIT_TRANSACTIONS, limit))


def _asyncpg_arguments(settings: Settings, *, time_limit: bool) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "timeout": CONNECT_TIMEOUT,
        "command_timeout": settings.database_timeout.total_seconds() if time_limit else None,
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
    elif time_limit:
        # A transaction whose client was lost without a word would keep its locks for as long as
        # TCP takes to notice, two hours by default, and whoever tries again would wait for them.
        limit = int(settings.database_timeout.total_seconds() * 1000)
        arguments["server_settings"]["idle_in_transaction_session_timeout"] = str(limit)
        arguments["server_settings"] |= _KEEPALIVE
    return arguments
