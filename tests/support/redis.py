"""A real Redis server for tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.parts import require
from tests.support.ports import HOST, accepts, free_port
from tests.support.processes import Process, Processes


@dataclass(frozen=True)
class RedisServer:
    """A running server: its URL, and its process to stop or kill."""

    url: str
    port: int
    process: Process


@contextmanager
def running_redis(
    *, port: int | None = None, persistent: Path | None = None
) -> Iterator[RedisServer]:
    """A Redis server of its own on loopback TCP.

    ``persistent`` is a folder for an append-only file, so that a second server started on it
    finds what the first one held; left out, nothing is written to disk.
    """
    program = require("redis")
    port = port or free_port()
    with Processes() as processes, tempfile.TemporaryDirectory(prefix="surehook-redis-") as folder:
        process = processes.start(
            program,
            "--bind",
            HOST,
            "--port",
            str(port),
            "--save",
            "",
            "--appendonly",
            "yes" if persistent else "no",
            "--appendfsync",
            "always",
            "--dir",
            str(persistent or folder),
        )
        process.wait_for(lambda: accepts(port))
        yield RedisServer(f"redis://{HOST}:{port}/0", port, process)
