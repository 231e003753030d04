"""From commit to receipt, at 50, 200 and 1,000 events a second.

A publisher in this process commits events at an even rate in transactions of their own, through
the library door on asyncpg; ``surehook worker`` polls in its process. One clock serves both ends.
The yardstick is the bare way: the same requests posted by a plain aiohttp loop at the same rate.
``idle``: an event every second or two, so that the worker looks only each `poll_interval` (1 s),
without and with `poke_workers` after the commit.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import aiohttp
import uvloop

from bench.figures import percentiles
from bench.rig import DATA, TENANT, Rig, Target, postgresql_rig, running_target, wait_for
from delivery_service.bootstrap import build
from sender import publish
from sender.waking import poke_workers

RATES = (50, 200, 1000)
SECONDS = 6.0
ENDPOINTS = 20
PUBLISHERS = 8
IDLE_EVENTS = 15


def run() -> dict[str, Any]:
    """p50, p95 and p99 in milliseconds for each rate."""
    figures: dict[str, Any] = {}
    yardstick: dict[str, Any] = {}
    with running_target(ENDPOINTS) as target:
        for rate in RATES:
            yardstick[f"at_{rate}_per_s_ms"] = uvloop.run(_bare(target, rate))
            with postgresql_rig() as rig:
                rig.add_endpoints([target.url(0)])
                figures[f"at_{rate}_per_s_ms"] = _measure(
                    rig, target, partial(publish_evenly, rate=rate, seconds=SECONDS, tenant=TENANT)
                )
        with postgresql_rig() as rig:
            rig.add_endpoints([target.url(0)])
            figures["idle_ms"] = _measure(rig, target, _publish_seldom)
            figures["idle_poked_ms"] = _measure(rig, target, partial(_publish_seldom, poke=True))
        for name in ("idle_ms", "idle_poked_ms"):
            yardstick[name] = yardstick[f"at_{RATES[0]}_per_s_ms"]
    ratio = {name: figures[name]["p99"] / max(yardstick[name]["p99"], 0.001) for name in figures}
    return {"name": "latency", "figures": figures, "yardstick": yardstick, "ratio": ratio}


def _measure(
    rig: Rig, target: Target, publishing: Callable[[Rig], Coroutine[Any, Any, dict[str, float]]]
) -> dict[str, float]:
    with rig.workers():
        rig.publish(1)
        wait_for(lambda: target.stats()["count"] > 0, 60)
        wait_for(lambda: rig.pending() == 0, 30)
        target.reset()
        committed = uvloop.run(publishing(rig))
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


async def _publish_seldom(rig: Rig, *, poke: bool = False) -> dict[str, float]:
    """Publish at odd moments, long after the last; return when each delivery was committed."""
    service = build(rig.settings())
    committed: dict[str, float] = {}
    pauses = random.Random(1)
    for _ in range(IDLE_EVENTS):
        await asyncio.sleep(pauses.uniform(1.2, 2.2))
        done = await service.database.write(publish, tenant=TENANT, type="invoice.paid", data=DATA)
        committed.update(dict.fromkeys(done.delivery_ids, time.time()))
        if poke:
            await service.database.write(poke_workers)
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
