"""Several processes migrate at once: one does, the others wait."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psycopg

from delivery_service import migrations
from delivery_service.settings import Settings
from delivery_service.store.database import Database
from tests.migrations.snapshot import snapshot
from tests.support.processes import Process, Processes
from tests.support.waiting import wait_until

MIGRATE = """
import asyncio, os, sys, time
from delivery_service import migrations
from delivery_service.settings import Settings
from delivery_service.store.database import open_database

async def main():
    database = open_database(Settings())
    print("ready", flush=True)
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.001)
    await migrations.upgrade(database)
    await migrations.check_head(database)
    await database.close()

asyncio.run(main())
"""

# Does everything that a migration does, and then hangs before it commits.
HANG = """
import time
from alembic import command
upgrade = command.upgrade

def upgrade_and_hang(config, revision):
    upgrade(config, revision)
    print("migrated", flush=True)
    time.sleep(600)

command.upgrade = upgrade_and_hang
"""


def start(processes: Processes, settings: Settings, go: Path, program: str = MIGRATE) -> Process:
    environment = {**os.environ, "SUREHOOK_DATABASE_URL": settings.database_url}
    return processes.start(sys.executable, "-c", program, str(go), env=environment)


async def test_f31_three_processes_start_on_an_empty_database(
    database: Database, settings: Settings, processes: Processes, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    started = [start(processes, settings, go) for _ in range(3)]
    for process in started:
        process.wait_for("ready")
    go.touch()
    for process in started:
        assert process.wait() == 0, process.output
    await migrations.check_head(database)
    await migrations.downgrade(database)
    assert await database.read(snapshot) == []


async def test_f31_a_process_that_is_killed_while_migrating_leaves_nothing(
    database: Database, settings: Settings, processes: Processes, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    go.touch()
    dying = start(processes, settings, go, HANG + MIGRATE)
    dying.wait_for("migrated")
    assert await database.read(snapshot) == []
    waiting = start(processes, settings, go)
    waiting.wait_for("ready")
    dying.kill()
    assert waiting.wait() == 0, waiting.output
    await migrations.check_head(database)


async def test_f31_a_process_waits_for_the_one_that_migrates(
    postgresql_url: str, processes: Processes, tmp_path: Path
) -> None:
    settings = Settings(database_url=postgresql_url.replace("+asyncpg", ""))
    go = tmp_path / "go"
    go.touch()
    waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with (
        psycopg.connect(settings.database_url) as holder,
        psycopg.connect(settings.database_url, autocommit=True) as observer,
    ):
        holder.execute("SELECT pg_advisory_xact_lock(%s)", [migrations.LOCK])
        process = start(processes, settings, go)
        wait_until(lambda: observer.execute(waiting).fetchone(), what="the process waits")
        assert process.running
        holder.commit()
        assert process.wait() == 0, process.output
