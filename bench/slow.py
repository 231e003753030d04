"""Receivers that take 200 ms: deliveries a second against in-flight ÷ latency.

The ideal is what `concurrency` requests in flight allow, if nothing else took any time. The
limit for one endpoint is set high enough not to matter, as it would be for a slow receiver.
"""

from __future__ import annotations

from typing import Any

from bench.rig import postgresql_rig, running_target, wait_for

LATENCY = 0.2
CONCURRENCIES = (50, 200, 400)
ENDPOINTS = 20
SECONDS = 8


def run() -> dict[str, Any]:
    """The rate and its part of the ideal, for several numbers of requests in flight."""
    figures: dict[str, float] = {}
    ideal: dict[str, float] = {}
    with running_target(ENDPOINTS) as target:
        for concurrency in CONCURRENCIES:
            name = f"with_{concurrency}_in_flight_per_s"
            ideal[name] = concurrency / LATENCY
            count = int(ideal[name] * SECONDS) // ENDPOINTS * ENDPOINTS
            with postgresql_rig() as rig:
                rig.with_options(concurrency=concurrency, endpoint_concurrency=concurrency)
                path = f"/slow/{int(LATENCY * 1000)}"
                rig.add_endpoints([target.url(number, path) for number in range(ENDPOINTS)])
                rig.publish(count // ENDPOINTS)
                target.reset()
                with rig.workers():
                    wait_for(lambda count=count: target.stats()["count"] >= count, 120)
            stats = target.stats()
            figures[name] = count / (stats["last"] - stats["first"] + LATENCY)
    ratio = {name: figures[name] / ideal[name] for name in figures}
    return {"name": "slow", "figures": figures, "yardstick": ideal, "ratio": ratio}
