"""Workers hear from other processes that something is due (PostgreSQL's LISTEN and NOTIFY).

A hint, never more: polling is the truth, and finds whatever a notification lost on its way was for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import structlog
from sqlalchemy import Connection, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from delivery_service.settings import Settings
from delivery_service.store.database import PING_TIMEOUT, Database
from sender.waking import CHANNEL, poke_workers

TOGETHER_SECONDS = 0.05
"""How long commits wait for one notification of them all after one was sent, and notifications for
one look of the worker."""

CLOSE_SECONDS = 1.0
"""How long a stopping process tries to announce what it published last."""

PING_SECONDS = 30.0
"""How often a connection that only listens has to show that it is alive."""

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
"""Seconds between tries to listen while the database is away."""

log = structlog.get_logger(__name__)


def can_notify(settings: Settings) -> bool:
    """Whether workers hear of what other processes publish."""
    # Behind PgBouncer, what listens is not the session that is notified.
    return settings.notify and not settings.is_sqlite and not settings.pgbouncer


async def tell_workers(database: Database, settings: Settings) -> None:
    """Send one notification to the workers, where they hear it."""
    if can_notify(settings):
        await _tell(database)


async def _tell(database: Database) -> None:
    # If the database lets us: workers look by themselves anyway.
    try:
        await database.write(_notify)
    except Exception as error:  # noqa: BLE001 - see above
        log.debug("notify_failed", error=repr(error)[:300])


def _notify(connection: Connection) -> None:
    # Nothing is lost with it, so the disk need not be waited for.
    connection.execute(select(func.set_config("synchronous_commit", "off", True)))
    poke_workers(connection)


class Together:
    """Does something at once, and for all further calls within `TOGETHER_SECONDS` once more.

    Call it in the event loop.
    """

    def __init__(self, action: Callable[[], Awaitable[None]]) -> None:
        self._action = action
        self._wanted = False
        self._acting: asyncio.Task[None] | None = None

    def __call__(self) -> None:
        self._wanted = True
        if self._acting is None or self._acting.done():
            self._acting = asyncio.create_task(self._act())

    async def _act(self) -> None:
        while self._wanted:
            self._wanted = False
            await self._action()
            await asyncio.sleep(TOGETHER_SECONDS)

    async def close(self) -> None:
        """Do what is left, if that takes no longer than `CLOSE_SECONDS`, and stop."""
        if self._acting is not None:
            await asyncio.wait([self._acting], timeout=CLOSE_SECONDS)
            self._acting.cancel()
            await asyncio.gather(self._acting, return_exceptions=True)


def announcer(database: Database) -> Together:
    """Make what to call after a commit that made something due, for workers elsewhere."""
    return Together(partial(_tell, database))


async def listen(database: Database, poke: Callable[[], None]) -> None:
    """Call ``poke`` for notifications, until cancelled; connects again for ever."""

    async def heard() -> None:
        poke()

    # Many processes may announce: together they must not have a worker do nothing but look.
    hear = Together(heard)
    try:
        await _listen(database, hear)
    finally:
        await hear.close()


async def _listen(database: Database, hear: Callable[[], None]) -> None:
    pause = FIRST_PAUSE
    while True:
        try:
            async with database.engine.connect() as connection:
                driver = await _out_of_pool(connection)
                await driver.add_listener(CHANNEL, lambda *_: hear())
                pause = FIRST_PAUSE
                hear()  # for what was announced before
                await _until_dead(driver)
        except Exception as error:  # noqa: BLE001 - the worker polls meanwhile
            log.warning("listen_failed", error=repr(error)[:300])
        await asyncio.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE)


async def _out_of_pool(connection: AsyncConnection) -> Any:
    """The driver's connection, whose place in the pool is free again."""
    driver = (await connection.get_raw_connection()).driver_connection
    await connection.run_sync(lambda sync: sync.detach())
    return driver


async def _until_dead(driver: Any) -> None:
    """Return when the connection has ended; raise when it does not answer any more."""
    ended = asyncio.Event()
    driver.add_termination_listener(lambda _: ended.set())
    while not ended.is_set():
        with suppress(TimeoutError):
            async with asyncio.timeout(PING_SECONDS):
                await ended.wait()
                return
        await driver.execute(";", timeout=PING_TIMEOUT)
