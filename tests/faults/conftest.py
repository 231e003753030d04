"""A field on each of the two databases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.faults.field import Field
from tests.support.processes import Processes
from tests.support.receiver import Receiver


@contextmanager
def _field(url: str, processes: Processes, receiver: Receiver) -> Iterator[Field]:
    made = Field(url, processes, receiver)
    yield made
    processes.kill_all()
    made.close()


@pytest.fixture
def field(database_url: str, processes: Processes, receiver: Receiver) -> Iterator[Field]:
    """On PostgreSQL and on SQLite, one after the other."""
    with _field(database_url, processes, receiver) as made:
        yield made


@pytest.fixture
def postgresql_field(
    postgresql_url: str, processes: Processes, receiver: Receiver
) -> Iterator[Field]:
    """On PostgreSQL: for faults that an embedded database can't have."""
    with _field(postgresql_url, processes, receiver) as made:
        yield made
