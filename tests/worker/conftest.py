"""The engine on a database with the tables; its clock stands still until a test moves it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.support.engine import Engined
from tests.support.fixtures import engine, postgresql_tables, sqlite_tables, tables_url

__all__ = ["engine", "postgresql_tables", "sqlite_tables", "tables_url"]

MakeEngined = Callable[..., Engined]


@pytest.fixture
async def make_engined(tables_url: str) -> AsyncIterator[MakeEngined]:
    """Make the engine with other settings than the defaults."""
    made: list[Engined] = []

    def make(**options: Any) -> Engined:
        made.append(Engined(tables_url, **options))
        return made[-1]

    yield make
    for engined in made:
        await engined.__aexit__()


@pytest.fixture
def engined(make_engined: MakeEngined) -> Engined:
    return make_engined()
