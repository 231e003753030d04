"""A database that worlds are made on, one after the other."""

from __future__ import annotations

import asyncio
from typing import Any

from cryptography.fernet import Fernet

from delivery_service.bootstrap import Service
from delivery_service.clock import ManualClock
from delivery_service.sealing import Sealer
from delivery_service.settings import Settings
from delivery_service.store.database import open_database
from sender import tables
from tests.model.world import START, World


class Bench:
    """One database for all examples, and the loop that its connections belong to."""

    def __init__(self, url: str) -> None:
        key = Fernet.generate_key().decode()
        self.settings = Settings(
            database_url=url,
            encryption_keys=[key],
            schedule="1m,5m",
            retry_after_cap=600,
            circuit_open_after=2,
            circuit_first_pause=30,
            circuit_longest_pause=600,
            disable_after=7200,
        )
        self.loop = asyncio.new_event_loop()
        self.database = open_database(self.settings)
        self.sealer = Sealer([key])
        self.run(self.database.write(tables.metadata.create_all))

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def world(self) -> World:
        self.run(self.database.write(_empty))
        clock = ManualClock(START)
        service = Service(self.settings, self.database, self.sealer, clock)
        return World(service, clock, self.run)

    def close(self) -> None:
        self.run(self.database.close())
        self.run(self.loop.shutdown_default_executor())
        self.loop.close()


def _empty(connection: Any) -> None:
    for table in tables.metadata.sorted_tables:
        connection.execute(table.delete())
