"""Receipts in PostgreSQL, SQLite, MySQL or MariaDB, through SQLAlchemy.

Two ways:

- ``Gate(SqlStore(engine))``: claim, complete and release are short transactions of their own.
- ``gate.within(session)``: the receipt is a row of *your* transaction. It commits with the
  effect or not at all, so the effect happens exactly once. A claim is one INSERT of a finished
  receipt; a second delivery waits on the unique key and answers `Done` when you have committed.

The table is ``surehook_receipts``; see `SqlStore.create_table` or ``receiver.sql.metadata``.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from receiver.call import Call
from receiver.database import Database
from receiver.errors import GateError
from receiver.receipt import CLAIMED, DONE, FREE, PARKED, ClaimResult, DeadLetter
from receiver.sqlclaim import claim_on, fail_on
from receiver.statements import metadata, receipts, statements_for
from receiver.store import Steps, Store

__all__ = ["SqlStore", "metadata", "receipts"]

T = TypeVar("T")
Transaction = Connection | Session | AsyncConnection | AsyncSession

_NEVER = 2**31 - 1
_TRANSACTIONS = (Connection, Session, AsyncConnection, AsyncSession)


class SqlStore:
    """Receipts in the table ``surehook_receipts`` of the database of `engine`.

    Time is the database's. Own transactions run in the driver's autocommit mode where that saves
    round trips. Raises `GateError` for a database of another kind.
    """

    def __init__(self, engine: Engine | AsyncEngine) -> None:
        self._database = Database(engine)
        family = self._database.family
        self._statements = statements_for(engine.dialect, family, joined=False)
        self._joined = statements_for(engine.dialect, family, joined=True)
        self.blocking = self._database.blocking

    def create_table(self) -> Call[None]:
        """Create the table unless it is there. Safe when several processes do it at once."""
        return Call(self._database.create(metadata, receipts.name), blocking=self.blocking)

    def within(self, transaction: object) -> Store:
        """See `receiver.gate.Gate.within`."""
        if not isinstance(transaction, _TRANSACTIONS):
            raise GateError(
                "within() takes a Connection, Session, AsyncConnection or AsyncSession, not "
                f"{type(transaction).__name__}"
            )
        return _JoinedStore(self, transaction)

    def claim(
        self,
        key: str,
        fingerprint: str,
        token: str,
        *,
        lease: int,
        ttl: int,
        max_failures: int | None,
        now: int | None,
    ) -> Steps[ClaimResult]:
        """See `receiver.gate.Store`."""
        wanted = self._values(key, fingerprint, token, CLAIMED, lease, ttl, now)

        def work(connection: Connection) -> ClaimResult:
            return claim_on(connection, self._statements, wanted, max_failures, one_trip=True)

        result: ClaimResult = yield self._database.run(work)
        return result

    def complete(
        self, key: str, token: str, response: bytes | None, *, ttl: int, now: int | None
    ) -> Steps[bool]:
        """See `receiver.gate.Store`."""
        values = {"key": self._key(key), "token": token, "ttl": ttl, "now": now}
        values["response"] = response
        return self._change("complete", values)

    def release(
        self,
        key: str,
        token: str,
        error: str | None,
        *,
        ttl: int,
        max_failures: int | None,
        now: int | None,
    ) -> Steps[bool]:
        """See `receiver.gate.Store`."""
        counted = error is not None
        limit = max_failures if counted and max_failures is not None else _NEVER
        values = {"key": self._key(key), "token": token, "ttl": ttl, "now": now}
        values |= {"error": error, "max_failures": limit, "given_back": 0 if counted else 1}
        return self._change("release", values)

    def extend(self, key: str, token: str, *, lease: int, ttl: int, now: int | None) -> Steps[bool]:
        """See `receiver.gate.Store`."""
        values = {"key": self._key(key), "token": token, "lease": lease, "ttl": ttl, "now": now}
        return self._change("extend", values)

    def dead_letters(self, limit: int) -> Steps[list[DeadLetter]]:
        """See `receiver.gate.Store`. Reads the whole table: it has no index for this."""
        rows = yield self._database.run(
            lambda c: self._statements.parked.run(c, {"limit": limit}).rows
        )
        return [
            DeadLetter(
                key.decode() if isinstance(key, bytes) else key,
                attempts,
                error,
                datetime.fromtimestamp(since / 1000, UTC),
            )
            for key, attempts, error, since in rows
        ]

    def revive(self, key: str) -> Steps[bool]:
        """See `receiver.gate.Store`."""
        return self._change("revive", {"key": self._key(key)})

    def purge(self, limit: int, now: int | None) -> Steps[int]:
        """See `receiver.gate.Store`."""
        values = {"limit": limit, "now": now}
        count: int = yield self._database.run(
            lambda c: self._statements.purge.run(c, values).rowcount
        )
        return count

    def fail(
        self, key: str, error: str, *, ttl: int, max_failures: int | None, now: int | None
    ) -> Steps[bool]:
        """Count a failure of work whose claim was rolled back with it."""
        parked = max_failures is not None and max_failures <= 1
        wanted = self._values(key, "", "", PARKED if parked else FREE, 0, ttl, now)
        wanted["error"] = error

        def work(connection: Connection) -> bool:
            return fail_on(connection, self._statements, wanted, max_failures)

        done: bool = yield self._database.run(work)
        return done

    def _change(self, name: str, values: dict[str, Any]) -> Steps[bool]:
        statement = getattr(self._statements, name)
        changed: int = yield self._database.run(lambda c: statement.run(c, values).rowcount)
        return changed == 1

    def _values(
        self,
        key: str,
        fingerprint: str,
        token: str,
        state: str,
        lease: int,
        ttl: int,
        now: int | None,
    ) -> dict[str, Any]:
        return {
            "key": self._key(key),
            "fingerprint": fingerprint,
            "token": token,
            "state": state,
            "lease": lease,
            "ttl": ttl,
            "now": now,
            "error": None,
        }

    def _key(self, key: str) -> str | bytes:
        return key.encode() if self._database.family == "mysql" else key


class _JoinedStore(SqlStore):
    """A `SqlStore` whose claims are rows of the caller's transaction."""

    def __init__(self, store: SqlStore, transaction: Transaction) -> None:
        self._database = store._database  # noqa: SLF001 - its own class
        self._statements = store._statements  # noqa: SLF001 - its own class
        self._joined = store._joined  # noqa: SLF001 - its own class
        self._transaction = transaction
        self._ttl = 0
        # Never in another thread: the transaction belongs to the caller's.
        self.blocking = False

    def claim(
        self,
        key: str,
        fingerprint: str,
        token: str,
        *,
        lease: int,
        ttl: int,
        max_failures: int | None,
        now: int | None,
    ) -> Steps[ClaimResult]:
        """One INSERT of a finished receipt; it counts when the caller commits."""
        del lease
        wanted = self._values(key, fingerprint, token, DONE, 0, ttl, now)
        self._ttl = ttl

        def work(connection: Connection) -> ClaimResult:
            return claim_on(connection, self._joined, wanted, max_failures, one_trip=False)

        result: ClaimResult = yield self._join(work)
        return result

    def complete(
        self, key: str, token: str, response: bytes | None, *, ttl: int, now: int | None
    ) -> Steps[bool]:
        """Add `response` or another `ttl` to the receipt; without either there is nothing to do."""
        if response is None and ttl == self._ttl:
            yield None
            return True
        values = {"key": self._key(key), "token": token, "ttl": ttl, "now": now}
        values["response"] = response
        changed = yield self._join(lambda c: self._joined.complete.run(c, values).rowcount)
        return bool(changed == 1)

    def extend(self, key: str, token: str, *, lease: int, ttl: int, now: int | None) -> Steps[bool]:
        """Nothing to do: the row is locked until the caller commits or rolls back."""
        del key, token, lease, ttl, now
        yield None
        return True

    def release(
        self,
        key: str,
        token: str,
        error: str | None,
        *,
        ttl: int,
        max_failures: int | None,
        now: int | None,
    ) -> Steps[bool]:
        """Record the failure in a transaction of its own, after the caller's was rolled back."""
        del token
        if self._transaction.in_transaction():
            raise GateError("roll the transaction back before release(): it holds the receipt")
        if error is None:
            yield None
            return True
        result = yield from self.fail(key, error, ttl=ttl, max_failures=max_failures, now=now)
        return result

    def _join(self, work: Callable[[Connection], T]) -> Any:
        match self._transaction:
            case Connection() as connection:
                return work(connection)
            case Session() as session:
                return work(session.connection())
            case AsyncSession() as session:
                return session.run_sync(lambda inner: work(inner.connection()))
            case connection:
                return connection.run_sync(work)
