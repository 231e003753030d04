"""Commands of an operator on a migrated database, in this process or as real ones."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from sqlalchemy import Engine
from typer.testing import CliRunner, Result

from delivery_service import migrations
from delivery_service.cli import app
from delivery_service.settings import Settings
from delivery_service.store.database import open_database
from tests.support.processes import Process, Processes
from tests.support.tables import sync_engine

COMMAND = (sys.executable, "-m", "delivery_service")


on_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
"""For tests of what SQLite has not."""


class Operator:
    """Somebody at a terminal, and what is in the database."""

    def __init__(self, settings: Settings, url: str, processes: Processes) -> None:
        self.settings = settings
        self.engine: Engine = sync_engine(url)
        self._processes = processes

    def run(self, *arguments: str, status: int = 0) -> Result:
        """Run a command that ends with ``status``."""
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == status, (arguments, result.output, result.exception)
        return result

    def json(self, *arguments: str, status: int = 0) -> Any:
        """Run a command with --json; return what it says."""
        return json.loads(self.run(*arguments, "--json", status=status).stdout)

    def error(self, *arguments: str) -> str:
        """Run a command that fails; return the one line that it prints."""
        result = self.run(*arguments, status=2)
        assert result.stdout == ""
        assert result.stderr.count("\n") == 1, result.stderr
        assert result.stderr.startswith("surehook: ")
        return result.stderr

    def start(self, *arguments: str, **variables: str) -> Process:
        """Start a command as a process of its own, with the environment of this one."""
        return self._processes.start(*COMMAND, *arguments, env={**os.environ, **variables})

    def endpoint(self, url: str = "http://127.0.0.1:9000/hook", *more: str) -> dict[str, Any]:
        """Register an endpoint of tenant ``acme``."""
        return dict(self.json("endpoint", "add", "--tenant", "acme", "--url", url, *more))

    def publish(self, type_: str = "invoice.paid") -> dict[str, Any]:
        """Publish an event for tenant ``acme``."""
        return dict(self.json("publish", "--tenant", "acme", "--type", type_, "--data", "{}"))


@pytest.fixture
def operator(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: Processes
) -> Iterator[Operator]:
    """An operator of a service whose endpoints may be on loopback, on each kind of database."""
    monkeypatch.chdir(tmp_path)
    url = database_url.replace("+asyncpg", "").replace("+aiosqlite", "")
    for name, value in {
        "DATABASE_URL": url,
        "ENCRYPTION_KEYS": Fernet.generate_key().decode(),
        "ALLOW_PRIVATE_NETWORKS": "true",
        "POLL_INTERVAL": "0.1",
        "LOG_LEVEL": "error",
    }.items():
        monkeypatch.setenv(f"SUREHOOK_{name}", value)
    settings = Settings()

    async def migrate() -> None:
        database = open_database(settings, time_limit=False)
        try:
            await migrations.upgrade(database)
        finally:
            await database.close()

    asyncio.run(migrate())
    made = Operator(settings, database_url, processes)
    yield made
    made.engine.dispose()


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs commands where there is neither a database nor a setting."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("SUREHOOK_"):
            monkeypatch.delenv(name)

    def run(*arguments: str, status: int = 0) -> Result:
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == status, (arguments, result.output, result.exception)
        return result

    return run
