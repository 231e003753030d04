"""Transactions on an engine of either kind, for the stores that keep rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, MetaData, inspect
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine

from receiver.errors import GateError
from receiver.store import Steps

T = TypeVar("T")
Work = Callable[[Connection], T]

CLOCKS = {
    "postgresql": "(extract(epoch FROM clock_timestamp()) * 1000)::bigint",
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
    # Not UNIX_TIMESTAMP: it reads local time, which is ambiguous for one hour each autumn.
    "mysql": "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000",
}
"""The database's time in milliseconds since the epoch, UTC, by family of database."""

_DEADLOCK = 1213
# A deadlock's victim tries again, and the transaction it lost to has made progress.
_ROUNDS = 10


class Database:
    """`engine`, synchronous or asynchronous, and how to run short work on it.

    Raises `GateError` for anything but PostgreSQL, SQLite, MySQL or MariaDB.
    """

    __slots__ = ("_autocommits", "blocking", "engine", "family", "short")

    def __init__(self, engine: Engine | AsyncEngine) -> None:
        name = engine.dialect.name
        self.family = "mysql" if name == "mariadb" else name
        if self.family not in CLOCKS:
            raise GateError(
                f"the receiver kit knows PostgreSQL, SQLite, MySQL and MariaDB, not {name}: "
                "give it an engine for one of these"
            )
        self.engine = engine
        self.blocking = isinstance(engine, Engine)
        # One statement is a transaction; without BEGIN and COMMIT it takes one round trip, not
        # three. MySQL drivers need more round trips to switch than that saves.
        self._autocommits = self.family != "mysql"
        self.short: Engine | AsyncEngine = (
            engine.execution_options(isolation_level="AUTOCOMMIT") if self._autocommits else engine
        )

    def run(self, work: Work[T]) -> Any:
        """Run `work`, whose statements may each be a transaction, and give its result.

        With an asynchronous engine, give an awaitable of it: the step of a `Call`.
        """
        if isinstance(self.short, AsyncEngine):
            return self._run_async(self.short, work)
        last: OperationalError | None = None
        for _ in range(_ROUNDS):
            try:
                with self.short.connect() as connection:
                    result = work(connection)
                    if not self._autocommits:
                        connection.commit()
                    return result
            except OperationalError as error:
                if not _is_deadlock(error):
                    raise
                last = error
        raise last or AssertionError

    async def _run_async(self, engine: AsyncEngine, work: Work[T]) -> T:
        last: OperationalError | None = None
        for _ in range(_ROUNDS):
            try:
                async with engine.connect() as connection:
                    result = await connection.run_sync(work)
                    if not self._autocommits:
                        await connection.commit()
                    return result
            except OperationalError as error:
                if not _is_deadlock(error):
                    raise
                last = error
        raise last or AssertionError

    def create(self, metadata: MetaData, name: str) -> Steps[None]:
        """Create table `name` of `metadata` unless it is there."""
        table = metadata.tables[name]
        try:
            yield self.run(lambda connection: metadata.create_all(connection, tables=[table]))
        except DBAPIError:
            # Another process may have created it between the look and the deed.
            there = yield self.run(lambda connection: inspect(connection).has_table(name))
            if not there:
                raise


def _is_deadlock(error: OperationalError) -> bool:
    arguments: tuple[object, ...] = getattr(error.orig, "args", ())
    return arguments[:1] == (_DEADLOCK,)
