"""Settings and database of a command."""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from delivery_service.cli.failing import CommandError
from delivery_service.settings import Settings, SettingsError, config_file
from delivery_service.store.database import Database, open_database

if TYPE_CHECKING:
    from delivery_service.bootstrap import Service

T = TypeVar("T")


def load_settings(**given: Any) -> Settings:
    """Read the settings; ``given`` ones that are not None come before all others.

    Raises `SettingsError`, which names every setting that is wrong, but not its value: that may
    be a secret.
    """
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        raise SettingsError(faults_of(error)) from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{config_file()}: {error}") from None


def faults_of(error: ValidationError) -> str:
    """Return what is wrong, each with its name, but without its value: that may be a secret."""
    return "; ".join(_fault(fault) for fault in error.errors())


def _fault(fault: Any) -> str:
    name = ".".join(str(part) for part in fault["loc"])
    message = str(fault["msg"]).removeprefix("Value error, ")
    return f"{name}: {message}" if name else message


def in_database(work: Callable[[Database, Settings], Awaitable[T]]) -> T:
    """Run ``work(database, settings)`` on a database that is at head, and return its result."""
    # Alembic takes longer to import than many commands to run.
    from delivery_service.migrations import check_head  # noqa: PLC0415

    settings = load_settings()
    check_sqlite_file(settings)

    async def run() -> T:
        database = open_database(settings)
        try:
            await check_head(database)
            return await work(database, settings)
        finally:
            await database.close()

    return asyncio.run(run())


def in_service(work: Callable[[Service], Awaitable[T]]) -> T:
    """Run ``work(service)`` as `in_database` does, with the parts of a process on the database."""
    # It brings the worker along, which the other commands start faster without.
    from delivery_service.bootstrap import build  # noqa: PLC0415

    async def run(database: Database, settings: Settings) -> T:
        service = build(settings, database=database)
        try:
            return await work(service)
        finally:
            await service.close()

    return in_database(run)


def check_sqlite_file(settings: Settings) -> None:
    """Raise `CommandError` when the settings name an SQLite file that does not exist."""
    # Connecting would create it, wherever the command happens to be run.
    name = settings.async_database_url.database
    if settings.is_sqlite and name and not name.startswith("file:") and not Path(name).exists():
        raise CommandError(
            f"database_url: there is no file {name}; run `surehook up` or `surehook migrate` there,"
            " or set SUREHOOK_DATABASE_URL"
        )
