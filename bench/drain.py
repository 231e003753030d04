"""Deliveries a second out of a stored backlog, beside a bare aiohttp loop.

20,000 stored deliveries over 100 endpoints (distinct loopback addresses), PostgreSQL with fsync,
``surehook worker`` in its own process. The yardstick posts the same bodies with the same headers
to the same receiver from a loop that does nothing else. Rates are between the first and the last
request that the receiver saw; CPU is that of worker and database, in microseconds a delivery.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

import aiohttp
import psutil
import uvloop
from yarl import URL

from bench.rig import DATA, Rig, Target, cpu_seconds, postgresql_rig, running_target, wait_for
from delivery_service.bootstrap import USER_AGENT
from wire.envelope import encode_event
from wire.ids import DELIVERY, EVENT, id_time, new_id
from wire.profiles import STANDARD, build_headers
from wire.secrets import generate_secret, parse_secret

ENDPOINTS = 100
DELIVERIES = 20_000
ROUNDS = 3
IN_FLIGHT = 100
LIMIT = 300.0


def run(deliveries: int = DELIVERIES, rounds: int = ROUNDS) -> dict[str, Any]:
    """One worker process and two take turns with the yardstick; medians of the rounds count."""
    with running_target(ENDPOINTS) as target, postgresql_rig() as rig:
        rig.add_endpoints([target.url(number) for number in range(ENDPOINTS)])
        found = [_round(rig, target, deliveries) for _ in range(rounds)]
    middle = {name: statistics.median(each[name] for each in found) for name in found[0]}
    yardstick = {name: value for name, value in middle.items() if name.startswith("bare_")}
    ratio = ("one_process", "two_processes", "two_to_one")
    return {
        "name": "drain",
        "figures": {
            name: value
            for name, value in middle.items()
            if name not in yardstick and name not in ratio
        },
        "yardstick": yardstick,
        "ratio": {name: middle[name] for name in ratio},
    }


def _round(rig: Rig, target: Target, deliveries: int) -> dict[str, float]:
    """Each with the yardstick before and after it: a machine's speed changes by the minute."""
    bare = [yardstick(target, deliveries)]
    one = drain(rig, target, 1, deliveries)
    bare.append(yardstick(target, deliveries))
    two = drain(rig, target, 2, deliveries)
    bare.append(yardstick(target, deliveries))
    rates = [each["rate"] for each in bare]
    return {
        "one_process_per_s": one["rate"],
        "one_process_worker_cpu_us": one["worker_cpu_us"],
        "one_process_database_cpu_us": one["database_cpu_us"],
        "two_processes_per_s": two["rate"],
        "two_processes_worker_cpu_us": two["worker_cpu_us"],
        "two_processes_database_cpu_us": two["database_cpu_us"],
        "bare_aiohttp_per_s": statistics.mean(rates),
        "bare_aiohttp_cpu_us": statistics.mean(each["cpu_us"] for each in bare),
        "one_process": one["rate"] / statistics.mean(rates[:2]),
        "two_processes": two["rate"] / statistics.mean(rates[1:]),
        "two_to_one": two["rate"] / one["rate"],
    }


def drain(rig: Rig, target: Target, processes: int, deliveries: int) -> dict[str, float]:
    """Store a backlog, start workers, and measure until all of it is recorded."""
    rig.publish(deliveries // ENDPOINTS)
    target.reset()
    with rig.workers(processes) as worker:
        wait_for(lambda: target.stats()["count"] > 0, 60, 0.01)
        workers = [worker, *worker.children(recursive=True)]
        databases = rig.database_processes()
        start = (cpu_seconds(workers), cpu_seconds(databases))
        wait_for(lambda: target.stats()["count"] >= deliveries, LIMIT, 0.25)
        wait_for(lambda: rig.pending() == 0, 30)
        used = (cpu_seconds(workers) - start[0], cpu_seconds(rig.database_processes()) - start[1])
    stats = target.stats()
    if stats["count"] != deliveries:
        raise AssertionError(f"{stats['count']} requests for {deliveries} deliveries")
    return {
        "rate": deliveries / (stats["last"] - stats["first"]),
        "worker_cpu_us": used[0] / deliveries * 1e6,
        "database_cpu_us": used[1] / deliveries * 1e6,
    }


def yardstick(target: Target, requests: int) -> dict[str, float]:
    """A bare aiohttp loop: the same bodies, headers, receiver and event loop."""
    target.reset()
    process = psutil.Process()
    cpu = cpu_seconds([process])
    uvloop.run(_post_all(target, requests))
    cpu = cpu_seconds([process]) - cpu
    stats = target.stats()
    return {
        "rate": requests / (stats["last"] - stats["first"]),
        "cpu_us": cpu / requests * 1e6,
    }


async def _post_all(target: Target, requests: int) -> None:
    secret = parse_secret(generate_secret())
    event_id = new_id(EVENT)
    body = encode_event(event_id, "invoice.paid", id_time(event_id), DATA)
    urls = [URL(target.url(number), encoded=True) for number in range(ENDPOINTS)]
    prepared = [
        (
            urls[number % ENDPOINTS],
            build_headers(
                [STANDARD],
                secrets=[secret],
                delivery_id=new_id(DELIVERY),
                event_id=event_id,
                event_type="invoice.paid",
                attempt=1,
                timestamp=int(time.time()),
                body=body,
                user_agent=USER_AGENT,
            ),
        )
        for number in range(requests)
    ]
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
        remaining = iter(prepared)

        async def poster() -> None:
            for url, headers in remaining:
                async with session.post(
                    url, data=body, headers=headers, allow_redirects=False
                ) as response:
                    await response.read()

        await asyncio.gather(*(poster() for _ in range(IN_FLIGHT)))
