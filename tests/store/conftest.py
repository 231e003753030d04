"""Databases that hold the tables."""

from __future__ import annotations

from tests.support.fixtures import engine, postgresql_tables, sqlite_tables, tables_url

__all__ = ["engine", "postgresql_tables", "sqlite_tables", "tables_url"]
