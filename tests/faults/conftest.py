"""A field on each of the two databases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.field import Field
from tests.support.processes import Processes
from tests.support.receiver import Receiver


@contextmanager
def _field(url: str, processes: Processes, receiver: Receiver, folder: Path) -> Iterator[Field]:
    made = Field(url, processes, receiver, folder)
    yield made
    processes.kill_all()
    made.close()


@pytest.fixture
def field(
    database_url: str, processes: Processes, receiver: Receiver, tmp_path: Path
) -> Iterator[Field]:
    """On PostgreSQL and on SQLite, one after the other."""
    with _field(database_url, processes, receiver, tmp_path) as made:
        yield made


@pytest.fixture
def postgresql_field(
    postgresql_url: str, processes: Processes, receiver: Receiver, tmp_path: Path
) -> Iterator[Field]:
    """On PostgreSQL: for faults that an embedded database can't have."""
    with _field(postgresql_url, processes, receiver, tmp_path) as made:
        yield made


@pytest.fixture
def both_fields(
    sqlite_url: str, postgresql_url: str, processes: Processes, tmp_path: Path
) -> Iterator[list[Field]]:
    """One on each database, for what takes so long that both must go on at once."""
    with (
        Receiver() as one,
        Receiver() as other,
        _field(sqlite_url, processes, one, tmp_path) as first,
        _field(postgresql_url, processes, other, tmp_path) as second,
    ):
        yield [first, second]
