"""What every operation needs: settings, database and clock."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar

from fastapi import Depends, Request
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from delivery_service.api.callers import KnownKeys
from delivery_service.api.catalogue import Catalogue
from delivery_service.api.problems import Problem
from delivery_service.api.publish_group import PublishGroup
from delivery_service.clock import Clock
from delivery_service.metrics import Metrics
from delivery_service.net.transport import Transport
from delivery_service.sealing import Sealer
from delivery_service.settings import Settings
from delivery_service.store.database import Database

P = ParamSpec("P")
T = TypeVar("T")
Work = Callable[Concatenate[Connection, P], T]

logger = logging.getLogger(__name__)

# Classes 08 and 57P: the connection is gone, or the server is going or coming (PostgreSQL manual,
# appendix A). 53300: it has no connection left.
_AWAY = ("08", "57P", "53300")


@dataclass(frozen=True)
class Context:
    """The parts of the service that operations use. ``on_publish`` pokes the worker of this
    process, or those of others, after a commit that made something due. ``transport`` makes one to
    send to receivers through, which whoever asked for it closes."""

    settings: Settings
    database: Database
    sealer: Sealer
    clock: Clock
    transport: Callable[[], Transport]
    on_publish: Callable[[], None] | None = None
    metrics: Metrics = field(default_factory=Metrics)
    catalogue: Catalogue = field(default_factory=Catalogue)
    known_keys: KnownKeys = field(default_factory=KnownKeys)
    publish_group: PublishGroup = field(default_factory=PublishGroup)

    @property
    def now(self) -> datetime | None:
        """The moment to hand to the store: None means the database's own clock."""
        return self.clock.now()

    async def read(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``work(connection, …)``, which must not write."""
        try:
            return await self.database.read(work, *args, **kwargs)
        except (DBAPIError, PoolTimeout, OSError) as error:
            raise _translated(error) from error

    async def write(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``work(connection, …)`` in a transaction and commit it."""
        try:
            return await self.database.write(work, *args, **kwargs)
        except (DBAPIError, PoolTimeout, OSError) as error:
            raise _translated(error) from error

    def poke(self) -> None:
        """Tell the workers that something is due."""
        if self.on_publish is not None:
            self.on_publish()


def _translated(error: Exception) -> Exception:
    if isinstance(error, DBAPIError) and not _is_away(error):
        return error
    # The driver's text may hold the statement's values, so only its type is logged.
    logger.warning("the database is not available: %s", type(error).__name__)
    return Problem(
        503,
        "database-unavailable",
        "The database can't be reached at the moment. Nothing was changed unless a commit was"
        " under way; repeat the request with the same Idempotency-Key.",
        headers={"retry-after": "1"},
    )


def _is_away(error: DBAPIError) -> bool:
    state = getattr(error.orig, "sqlstate", None) or ""
    return (
        error.connection_invalidated
        or isinstance(error, OperationalError | InterfaceError)
        or state.startswith(_AWAY)
    )


def _context(request: Request) -> Context:
    context: Context = request.app.state.surehook
    return context


Here = Annotated[Context, Depends(_context)]
"""The context, as a parameter of an operation."""

Row = dict[str, Any]
