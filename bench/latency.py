"""From commit to receipt, at 50, 200 and 1,000 events a second.

A publisher in this process commits events at an even rate in transactions of their own, through
the library door on asyncpg; ``surehook worker`` polls in its process. One clock serves both ends.
The yardstick is the bare way: the same requests posted by a plain aiohttp loop at the same rate.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiohttp
import uvloop

from bench.figures import percentiles
from bench.rig import DATA, TENANT, Rig, Target, postgresql_rig, running_target, wait_for
from delivery_service.bootstrap import build
from sender import publish

RATES = (50, 200, 1000)
SECONDS = 6.0
ENDPOINTS = 20
PUBLISHERS = 8


def run() -> dict[str, Any]:
    """p50, p95 and p99 in milliseconds for each rate."""
    figures: dict[str, Any] = {}
    yardstick: dict[str, Any] = {}
    with running_target(ENDPOINTS) as target:
        for rate in RATES:
            yardstick[f"at_{rate}_per_s_ms"] = uvloop.run(_bare(target, rate))
            with postgresql_rig() as rig:
                rig.add_endpoints([target.url(0)])
                figures[f"at_{rate}_per_s_ms"] = _measure(rig, target, rate)
    ratio = {name: figures[name]["p99"] / max(yardstick[name]["p99"], 0.001) for name in figures}
    return {"name": "latency", "figures": figures, "yardstick": yardstick, "ratio": ratio}


def _measure(rig: Rig, target: Target, rate: int) -> dict[str, float]:
    with rig.workers():
        rig.publish(1)
        wait_for(lambda: target.stats()["count"] > 0, 60)
        wait_for(lambda: rig.pending() == 0, 30)
        target.reset()
        committed = uvloop.run(publish_evenly(rig, rate, SECONDS, TENANT))
        wait_for(lambda: target.stats()["count"] >= len(committed), 60)
        details = target.details()
    received: dict[str, float] = {}
    for id_, at in zip(details["ids"], details["times"], strict=True):
        received.setdefault(id_, at)
    return percentiles([(received[id_] - at) * 1000 for id_, at in committed.items()])


async def publish_evenly(rig: Rig, rate: int, seconds: float, tenant: str) -> dict[str, float]:
    """Publish at an even rate; return when each delivery was committed."""
    service = build(rig.settings())
    committed: dict[str, float] = {}
    count = int(rate * seconds)
    numbers = iter(range(count))
    start = time.perf_counter() + 0.1

    async def publisher() -> None:
        for number in numbers:
            await asyncio.sleep(max(0.0, start + number / rate - time.perf_counter()))
            done = await service.database.write(
                publish, tenant=tenant, type="invoice.paid", data=DATA
            )
            at = time.time()
            committed.update(dict.fromkeys(done.delivery_ids, at))

    await asyncio.gather(*(publisher() for _ in range(PUBLISHERS)))
    await service.close()
    return committed


async def _bare(target: Target, rate: int) -> dict[str, float]:
    took: list[float] = []
    numbers = iter(range(int(rate * SECONDS)))
    start = time.perf_counter() + 0.1
    async with aiohttp.ClientSession() as session:

        async def poster() -> None:
            for number in numbers:
                await asyncio.sleep(max(0.0, start + number / rate - time.perf_counter()))
                begun = time.perf_counter()
                async with session.post(target.url(0), data=b"{}" * 250) as response:
                    await response.read()
                took.append((time.perf_counter() - begun) * 1000)

        await asyncio.gather(*(poster() for _ in range(PUBLISHERS)))
    return percentiles(took)
