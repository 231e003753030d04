"""Fixtures of the tests that need a database with the tables; each conftest names those it uses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from tests.support.postgres import Postgres
from tests.support.tables import create_tables, postgresql_with_tables, sync_engine


@pytest.fixture
def postgresql_tables(postgres: Postgres) -> Iterator[str]:
    """URL of a PostgreSQL database that holds the tables."""
    name = postgresql_with_tables(postgres)
    yield postgres.url(name)
    postgres.drop(name)


@pytest.fixture
def sqlite_tables(sqlite_url: str) -> str:
    """URL of an SQLite file that holds the tables."""
    create_tables(sqlite_url)
    return sqlite_url


@pytest.fixture(params=["sqlite", "postgresql"])
def tables_url(request: pytest.FixtureRequest) -> str:
    """URL of a database that holds the tables; the test runs once on each of the two kinds."""
    url: str = request.getfixturevalue(f"{request.param}_tables")
    return url


@pytest.fixture
def engine(tables_url: str) -> Iterator[Engine]:
    """A synchronous engine on that database."""
    made = sync_engine(tables_url)
    yield made
    made.dispose()
