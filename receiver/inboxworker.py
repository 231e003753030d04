"""The worker of an inbox: claims what is due, runs handlers, records how it went."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import random
import secrets
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from receiver.errors import GateError
from receiver.gate import error_text
from receiver.inbox import Handler, Inbox, InboxMessage, Registration
from receiver.inboxsql import Row

_log = logging.getLogger("surehook.receiver.inbox")

# How often a lease is renewed within its length, so that two renewals may fail.
_RENEWALS = 3
_LOST = "the lease was lost to another worker"


class _LeaseLostError(Exception):
    """Another worker has taken the message over; whatever was done must not be recorded."""


class InboxWorker:
    """Handles an inbox's messages, `concurrency` at a time, until `stop`.

    Asynchronous handlers run as tasks, synchronous ones in threads. It looks for work every `poll`
    seconds (and up to a tenth more or less, so that workers spread), and at once when a message is
    added in the same process or a handler has finished. Leases are renewed while handlers run.
    When it stops, it finishes what it has begun for up to `grace` seconds, and gives the rest
    back uncounted. If the database is away it waits and tries again, for ever.

    Any number of workers, in any number of processes, may serve one inbox.
    """

    def __init__(
        self, inbox: Inbox, *, concurrency: int = 10, poll: float = 1.0, grace: float = 20.0
    ) -> None:
        if concurrency < 1 or poll <= 0 or grace < 0:
            raise GateError("concurrency must be 1 or more, poll above 0, grace 0 or more")
        self._inbox = inbox
        self._concurrency = concurrency
        self._poll = poll
        self._grace = grace
        self._stopping = False
        self._wake: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads: ThreadPoolExecutor | None = None
        inbox.attach(self)

    def stop(self) -> None:
        """Claim nothing more and let `run` end. May be called from any thread or signal."""
        self._stopping = True
        self.poke()

    def poke(self) -> None:
        """Look for work now. May be called from any thread."""
        loop, wake = self._loop, self._wake
        if loop is None or wake is None:
            return
        # The loop may close in between; then there is nobody to wake.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(wake.set)

    async def run(self) -> None:
        """Work until `stop` is called; cancelling it stops at once, as after the grace period."""
        self._loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        self._threads = ThreadPoolExecutor(self._concurrency, thread_name_prefix="surehook-inbox")
        running: set[asyncio.Task[None]] = set()
        try:
            while not self._stopping:
                self._wake.clear()
                rows = await self._claim(self._concurrency - len(running))
                for row in rows:
                    task = asyncio.create_task(self._handle(row[0], row[1]))
                    running.add(task)
                    task.add_done_callback(running.discard)
                    task.add_done_callback(lambda _: self.poke())
                await self._pause()
            if running:
                await asyncio.wait(running, timeout=self._grace)
        finally:
            await self._give_up(running)
            self._loop = self._wake = None

    async def _pause(self) -> None:
        assert self._wake is not None  # noqa: S101 - set by run
        jitter = random.uniform(0.9, 1.1)  # noqa: S311 - spreads workers, hides nothing
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._poll * jitter):
                await self._wake.wait()

    async def _give_up(self, running: set[asyncio.Task[None]]) -> None:
        left = list(running)
        for task in left:
            task.cancel()
        if left:
            await asyncio.gather(*left, return_exceptions=True)
        if self._threads is not None:
            # A thread can't be stopped; its lease lapses and its token is refused.
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _claim(self, limit: int) -> list[tuple[Row, str]]:
        if limit < 1:
            return []
        token, lease = secrets.token_hex(16), round(self._inbox.lease * 1000)
        sql, now = self._inbox.sql, self._inbox.now()
        try:
            rows = await self._do(lambda c: sql.claim(c, token, limit, lease, now))
        except (SQLAlchemyError, OSError) as error:
            _log.warning("inbox can't be read, will try again: %s", error)
            return []
        return [(row, token) for row in rows]

    async def _handle(self, row: Row, token: str) -> None:
        values = {"key": row.key, "token": token}
        registration = self._inbox.registered(row.event_type)
        if registration is None:
            error = f'no handler for event type {row.event_type!r}: register one, or one for "*"'
            await self._record("park", {**values, "error": error})
            return
        if row.attempts > len(self._inbox.delays) + 1:
            # Attempts are counted when they begin: the last one began and never ended.
            error = row.error or "its worker died or hung in every attempt"
            await self._record("park", {**values, "error": error})
            return
        try:
            await self._run_handler(registration, row, token)
        except asyncio.CancelledError:
            given_back = {**values, "delay": 0, "given_back": 1, "error": None}
            await asyncio.shield(self._record("retry", given_back))
            raise
        except _LeaseLostError:
            _log.warning("inbox message %s: %s", row.key, _LOST)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is its failure
            await self._failed(row, values, error)

    async def _run_handler(self, registration: Registration, row: Row, token: str) -> None:
        received_at = datetime.fromtimestamp(row.received_at / 1000, UTC)
        message = InboxMessage(row.key, row.event_type, row.body, row.attempts, received_at)
        if registration.transactional:
            await self._in_transaction(registration.handler, message, token)
            return
        async with self._renewing(row, token):
            await self._call(registration.handler, message)
        if not await self._record("complete", {"key": row.key, "token": token}):
            raise _LeaseLostError

    async def _call(self, handler: Handler, *arguments: object) -> None:
        if inspect.iscoroutinefunction(handler):
            await handler(*arguments)
            return
        loop = asyncio.get_running_loop()
        result = await loop.run_in_executor(self._threads, handler, *arguments)
        if inspect.isawaitable(result):
            await result

    async def _in_transaction(self, handler: Handler, message: InboxMessage, token: str) -> None:
        """Complete first, then handle, then commit: the row lock keeps other workers away.

        And on SQLite a write as the first statement takes the write lock at once.
        """
        values = {"key": message.key, "token": token, "now": self._inbox.now()}
        sql, engine = self._inbox.sql, self._inbox.database.engine
        if isinstance(engine, Engine):

            def work() -> None:
                with engine.begin() as connection:
                    if not sql.change(connection, "complete", values):
                        raise _LeaseLostError
                    handler(message, connection)

            await asyncio.get_running_loop().run_in_executor(self._threads, work)
            return
        async with engine.begin() as connection:
            held = await connection.run_sync(lambda c: sql.change(c, "complete", values))
            if not held:
                raise _LeaseLostError
            result = handler(message, connection)
            if inspect.isawaitable(result):
                await result

    @contextlib.asynccontextmanager
    async def _renewing(self, row: Row, token: str) -> AsyncIterator[None]:
        """Renew the lease meanwhile; when it has been lost, cancel the body and say so."""
        lease = self._inbox.lease
        values = {"key": row.key, "token": token, "lease": round(lease * 1000)}
        body = asyncio.current_task()
        lost = False

        async def renew() -> None:
            nonlocal lost
            while True:
                await asyncio.sleep(lease / _RENEWALS)
                if await self._change("extend", values) is False:
                    lost = True
                    if body is not None:
                        body.cancel()
                    return

        renewal = asyncio.create_task(renew())
        try:
            yield
        except asyncio.CancelledError:
            if lost and body is not None and body.uncancel() == 0:
                raise _LeaseLostError from None
            raise
        finally:
            renewal.cancel()

    async def _failed(self, row: Row, values: dict[str, Any], error: Exception) -> None:
        _log.warning("inbox message %s failed, attempt %d: %r", row.key, row.attempts, error)
        values = {**values, "error": error_text(error)}
        if row.attempts > len(self._inbox.delays):
            await self._record("park", values)
            return
        delay = round(self._inbox.delays[row.attempts - 1] * 1000)
        await self._record("retry", {**values, "delay": delay, "given_back": 0})

    async def _record(self, change: str, values: dict[str, Any]) -> bool:
        """Record an end, trying again while the lease lasts; after it the message is due again."""
        pause, left = 0.1, self._inbox.lease
        while True:
            done = await self._change(change, values)
            if done is not None:
                return done
            if left <= 0:
                return False
            await asyncio.sleep(pause)
            left -= pause
            pause = min(pause * 2, 5.0)

    async def _change(self, name: str, values: dict[str, Any]) -> bool | None:
        """Whether the change was made; None when the database is away."""
        sql, given = self._inbox.sql, {**values, "now": self._inbox.now()}
        try:
            return bool(await self._do(lambda c: sql.change(c, name, given)))
        except (SQLAlchemyError, OSError) as error:
            _log.warning("inbox can't be written, will try again: %s", error)
            return None

    async def _do(self, work: Callable[[Connection], Any]) -> Any:
        database = self._inbox.database
        if database.blocking:
            return await asyncio.to_thread(database.run, work)
        return await database.run(work)
