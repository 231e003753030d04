"""Publishing: through the library and over HTTP, one by one and in batches.

Library: microseconds an event beside a bare INSERT + COMMIT of the event row, on the same engine.
HTTP: one API process pinned to one core, keep-alive connections, beside a route of the same
application that does only the authentication and one INSERT + COMMIT. Events go to one endpoint.
Clients, database and API share the machine's cores.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import uvloop
from sqlalchemy import create_engine, insert, make_url

from bench.publish_server import YARDSTICK_PATH
from bench.rig import DATA, TENANT, Rig, cpu_seconds, postgresql_rig
from delivery_service.store import keys
from sender import NewEvent, publish, publish_many, tables
from wire.envelope import encode_event
from wire.ids import EVENT, id_time, new_id

EVENT_BODY = {"tenant": TENANT, "type": "invoice.paid", "data": DATA}
CONNECTIONS = (1, 16)
REQUESTS = 3000
BATCH = 100


def run(requests: int = REQUESTS) -> dict[str, Any]:
    """Library first, then HTTP; yardstick and figure take turns, the medians count."""
    with postgresql_rig() as rig:
        rig.add_endpoints(["http://127.0.0.1:9/never"])
        figures, yardstick = library(rig)
        with running_api(rig) as (address, key, process):
            http = over_http(address, key, process, requests)
    figures |= http["figures"]
    yardstick |= http["yardstick"]
    ratio = {
        "library_single": figures["library_single_us"] / yardstick["bare_insert_us"],
        "library_batch": figures["library_batch_us"] / yardstick["bare_insert_us"],
        "load_average": os.getloadavg()[0],
    }
    for connections in CONNECTIONS:
        name = f"http_single_{connections}_per_s"
        bare = yardstick[f"http_insert_{connections}_per_s"]
        ratio[f"http_single_{connections}"] = figures[name] / bare
        ratio[f"http_keyed_{connections}"] = figures[f"http_keyed_{connections}_per_s"] / bare
    return {"name": "publish", "figures": figures, "yardstick": yardstick, "ratio": ratio}


def library(rig: Rig) -> tuple[dict[str, float], dict[str, float]]:
    """The library door on psycopg, as a platform would use it."""
    engine = create_engine(make_url(rig.url).set(drivername="postgresql+psycopg"))

    def bare() -> None:
        with engine.begin() as connection:
            connection.execute(insert(tables.events), event_row())

    def single() -> None:
        with engine.begin() as connection:
            publish(connection, tenant=TENANT, type="invoice.paid", data=DATA)

    batch = [NewEvent(tenant=TENANT, type="invoice.paid", data=DATA) for _ in range(500)]

    def many() -> None:
        with engine.begin() as connection:
            publish_many(connection, batch)

    taken = in_turn({"bare": (bare, 300), "single": (single, 300), "many": (many, 6)})
    engine.dispose()
    figures = {
        "library_single_us": taken["single"] * 1e6,
        "library_batch_us": taken["many"] / len(batch) * 1e6,
    }
    return figures, {"bare_insert_us": taken["bare"] * 1e6}


def in_turn(works: dict[str, tuple[Any, int]], rounds: int = 5) -> dict[str, float]:
    """Seconds of a call of each, the median of rounds in which they take turns."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds + 1):
        for name, (work, count) in works.items():
            start = time.perf_counter()
            for _ in range(count):
                work()
            taken[name].append((time.perf_counter() - start) / count)
    # The first round fills caches.
    return {name: statistics.median(values[1:]) for name, values in taken.items()}


def event_row() -> dict[str, Any]:
    """An event as it is stored."""
    event_id = new_id(EVENT)
    created_at = id_time(event_id)
    return {
        "id": event_id,
        "tenant_id": TENANT,
        "type": "invoice.paid",
        "body": encode_event(event_id, "invoice.paid", created_at, DATA),
        "content_type": "application/json",
        "created_at": created_at,
    }


@contextmanager
def running_api(rig: Rig) -> Iterator[tuple[tuple[str, int], str, psutil.Process]]:
    """Start the API with the yardstick's route in it, on one core; gives address and key."""
    new = rig.run(lambda service: service.database.write(keys.create, name="b", scope="publish"))
    command = [sys.executable, "-m", "bench.publish_server"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {**rig.environment(), "SUREHOOK_PORT": str(port)}
    process = subprocess.Popen(command, env=environment)
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        yield ("127.0.0.1", port), new.key, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(30)


def over_http(
    address: tuple[str, int], key: str, process: psutil.Process, requests: int
) -> dict[str, dict[str, float]]:
    """Requests a second of each kind."""
    body = json.dumps(EVENT_BODY).encode()
    batch = json.dumps({"events": [EVENT_BODY] * BATCH}).encode()
    figures: dict[str, float] = {}
    yardstick: dict[str, float] = {}

    def measure(path: str, content: bytes, count: int, connections: int, keyed: bool) -> float:
        return uvloop.run(load(address, key, path, content, count, connections, keyed))

    for connections in CONNECTIONS:
        rates: dict[str, list[float]] = {"insert": [], "single": [], "keyed": []}
        count = requests if connections > 1 else requests // 4
        for _ in range(4):
            rates["insert"].append(measure(YARDSTICK_PATH, body, count, connections, False))
            rates["single"].append(measure("/v1/events", body, count, connections, False))
            rates["keyed"].append(measure("/v1/events", body, count, connections, True))
        middle = {name: statistics.median(values[1:]) for name, values in rates.items()}
        yardstick[f"http_insert_{connections}_per_s"] = middle["insert"]
        figures[f"http_single_{connections}_per_s"] = middle["single"]
        figures[f"http_keyed_{connections}_per_s"] = middle["keyed"]
    measure("/v1/events/batch", batch, 20, 4, False)
    cpu = cpu_seconds([process])
    rate = measure("/v1/events/batch", batch, 150, 4, False)
    figures["http_batch_events_per_s"] = rate * BATCH
    figures["http_batch_api_cpu_us"] = (cpu_seconds([process]) - cpu) / (150 * BATCH) * 1e6
    return {"figures": figures, "yardstick": yardstick}


async def load(
    address: tuple[str, int],
    key: str,
    path: str,
    content: bytes,
    count: int,
    connections: int,
    keyed: bool,
) -> float:
    """Post ``count`` times over keep-alive connections; return requests a second.

    On bare streams: a client library would take more of the cores than the API.
    """
    remaining = iter(range(count))
    head = (
        f"POST {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(content)}\r\n"
    ).encode()

    async def connection() -> None:
        reader, writer = await asyncio.open_connection(*address)
        for _ in remaining:
            extra = b"idempotency-key: %b\r\n" % new_id("idk").encode() if keyed else b""
            writer.write(b"%b%b\r\n%b" % (head, extra, content))
            answer = await reader.readuntil(b"\r\n\r\n")
            if not answer.startswith(b"HTTP/1.1 202"):
                raise AssertionError(answer + await reader.read(2000))
            length = int(answer.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
        writer.close()

    start = time.perf_counter()
    await asyncio.gather(*(connection() for _ in range(connections)))
    return count / (time.perf_counter() - start)
