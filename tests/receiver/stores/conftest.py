"""Fixtures: an empty store of each kind, and the URL behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from receiver.store import Store
from tests.receiver.stores.kinds import open_store
from tests.receiver.stores.mariadb import MariaDb, running_mariadb
from tests.support.postgres import Postgres


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDb]:
    with running_mariadb() as server:
        yield server


@pytest.fixture
def store_url(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> Iterator[str]:
    """URL of an empty server or database for stores of `kind`."""
    if kind == "memory":
        yield ""
    elif kind in {"redis", "redis_async", "setnx"}:
        yield request.getfixturevalue("redis_url")
    elif kind == "mariadb":
        yield request.getfixturevalue("mariadb").create_database()
    elif kind.startswith("sqlite"):
        driver = "sqlite+aiosqlite" if kind.endswith("async") else "sqlite"
        yield f"{driver}:///{tmp_path / 'receipts.sqlite3'}"
    else:
        server: Postgres = request.getfixturevalue("postgres")
        name = server.create_database()
        yield server.url(name, "asyncpg" if kind.endswith("async") else "psycopg")
        server.drop(name)


@pytest.fixture
async def store(kind: str, store_url: str) -> AsyncIterator[Store]:
    async with open_store(kind, store_url) as opened:
        yield opened
