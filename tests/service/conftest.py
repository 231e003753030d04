"""The API on both databases, with a key of each kind."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import create_engine, make_url

from delivery_service.bootstrap import build
from delivery_service.clock import ManualClock
from delivery_service.sealing import generate_encryption_key
from delivery_service.settings import Settings
from delivery_service.store import keys
from sender.tables import metadata
from tests.service.caller import KINDS, Api, open_api
from tests.support.fixtures import postgresql_tables
from tests.support.postgres import Postgres

__all__ = ["postgresql_tables"]

START = datetime(2026, 11, 29, 10, tzinfo=UTC)
ENCRYPTION_KEY = generate_encryption_key()


def _prepare(url: str) -> dict[str, str]:
    """Create the tables and a key of each kind; return the keys by kind."""
    engine = create_engine(url)
    with engine.begin() as connection:
        metadata.create_all(connection)
        made = {
            kind: keys.create(connection, name=kind, now=START, **fields).key
            for kind, fields in KINDS.items()
        }
    engine.dispose()
    return made


class Templates:
    """Prepared databases to copy, since making them takes longer than most tests."""

    def __init__(self, folder: Path) -> None:
        self.sqlite = folder / "template.sqlite3"
        self.keys: dict[str, dict[str, str]] = {}

    def copy_sqlite(self, target: str) -> dict[str, str]:
        if "sqlite" not in self.keys:
            self.keys["sqlite"] = _prepare(f"sqlite:///{self.sqlite}")
        shutil.copyfile(self.sqlite, target)
        return self.keys["sqlite"]

    def copy_postgres(self, server: Postgres) -> tuple[str, dict[str, str]]:
        def prepare(name: str) -> None:
            self.keys["postgresql"] = _prepare(server.url(name, "psycopg"))

        name = server.create_database(template=server.template("service", prepare))
        return name, self.keys["postgresql"]


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Templates:
    return Templates(tmp_path_factory.mktemp("templates"))


@pytest.fixture
def clock() -> ManualClock:
    """A clock that the test moves."""
    return ManualClock(START)


@pytest.fixture
def options() -> dict[str, object]:
    """Settings that differ from the defaults; a test module may override it."""
    return {}


@asynccontextmanager
async def _opened(
    url: str, made: dict[str, str], clock: ManualClock, options: dict[str, object]
) -> AsyncIterator[Api]:
    settings = Settings(database_url=url, encryption_keys=[SecretStr(ENCRYPTION_KEY)], **options)
    service = build(settings, clock)
    async with open_api(service, clock, made) as opened:
        yield opened
    await service.close()


@pytest.fixture
async def sqlite_api(
    sqlite_url: str, templates: Templates, clock: ManualClock, options: dict[str, object]
) -> AsyncIterator[Api]:
    """The API on SQLite alone, for what never reaches the database."""
    path = make_url(sqlite_url).database
    assert path is not None
    made = templates.copy_sqlite(path)
    async with _opened(f"sqlite:///{path}", made, clock, options) as opened:
        yield opened


@pytest.fixture
async def postgresql_api(
    postgres: Postgres, templates: Templates, clock: ManualClock, options: dict[str, object]
) -> AsyncIterator[Api]:
    """The API on PostgreSQL alone."""
    name, made = templates.copy_postgres(postgres)
    async with _opened(postgres.url(name, "asyncpg"), made, clock, options) as opened:
        yield opened
    postgres.drop(name)


@pytest.fixture(params=["sqlite", "postgresql"])
def api(request: pytest.FixtureRequest) -> Api:
    """The API; the test runs once on each kind of database."""
    opened: Api = request.getfixturevalue(f"{request.param}_api")
    return opened
