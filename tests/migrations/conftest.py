"""Databases for migration tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from cryptography.fernet import Fernet

from delivery_service.settings import Settings
from delivery_service.store.database import Database, open_database


@pytest.fixture
def settings(database_url: str) -> Settings:
    url = database_url.replace("+asyncpg", "").replace("+aiosqlite", "")
    return Settings(database_url=url, encryption_keys=Fernet.generate_key().decode())


@pytest.fixture
async def database(settings: Settings) -> AsyncIterator[Database]:
    opened = open_database(settings)
    yield opened
    await opened.close()
