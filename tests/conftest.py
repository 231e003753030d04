"""Fixtures that every test may use. The servers are real; see ``tests/support``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis as redis_client
from hypothesis import settings

from tests.support.postgres import Postgres, postgres_for_tests
from tests.support.processes import Processes
from tests.support.receiver import Receiver
from tests.support.redis import RedisServer, running_redis
from wire import ids

# A slow machine is not a fault of the code under test.
settings.register_profile("surehook", deadline=None, print_blob=True)
settings.load_profile("surehook")


@pytest.fixture(autouse=True)
def _ids_by_the_clock() -> None:
    """Ids never go back in time within a process, so a test that sets the clock forward would give
    those after it ids, and with them times of creation, from its future."""
    ids._generator.reset()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The PostgreSQL server of this run."""
    with postgres_for_tests() as server:
        yield server


@pytest.fixture
def postgresql_url(postgres: Postgres) -> Iterator[str]:
    """SQLAlchemy URL (asyncpg) of an empty PostgreSQL database."""
    name = postgres.create_database()
    yield postgres.url(name)
    postgres.drop(name)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """SQLAlchemy URL (aiosqlite) of an SQLite file that does not exist yet."""
    return f"sqlite+aiosqlite:///{tmp_path / 'surehook.sqlite3'}"


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """URL of an empty database; the test runs once on each of the two kinds."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """The Redis server of this run. A test that stops it starts one of its own instead."""
    with running_redis() as server:
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """URL of an empty Redis database."""
    with redis_client.Redis.from_url(redis_server.url) as client:
        client.flushall()
    return redis_server.url


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """An HTTP receiver on loopback."""
    with Receiver() as server:
        yield server


@pytest.fixture
def processes() -> Iterator[Processes]:
    """Starts programs; those that still run at the end of the test are killed."""
    with Processes() as started:
        yield started
