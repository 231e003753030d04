"""Databases that hold the tables, and tenants with endpoints in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine

from sender.tables import endpoints
from sender.types import moment
from tests.support.fixtures import engine, postgresql_tables, sqlite_tables, tables_url
from wire.ids import ENDPOINT, new_id

__all__ = ["engine", "postgresql_tables", "sqlite_tables", "tables_url"]

AddEndpoint = Callable[..., str]


@pytest.fixture
def add_endpoint(engine: Engine) -> AddEndpoint:
    """Add an endpoint of tenant ``acme``; the arguments are columns."""

    def add(**values: Any) -> str:
        id_ = new_id(ENDPOINT)
        row = {"tenant_id": "acme", "url": "https://h.example/", "status": "enabled", **values}
        with engine.begin() as connection:
            connection.execute(
                endpoints.insert().values(
                    id=id_, created_at=moment(None), updated_at=moment(None), **row
                )
            )
        return id_

    return add
