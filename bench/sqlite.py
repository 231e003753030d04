"""Deliveries a second out of a stored backlog on SQLite, beside the bare aiohttp loop."""

from __future__ import annotations

from typing import Any

from bench.drain import ENDPOINTS, drain, yardstick
from bench.rig import running_target, sqlite_rig

DELIVERIES = 10_000


def run(deliveries: int = DELIVERIES) -> dict[str, Any]:
    """One worker process on one file."""
    with running_target(ENDPOINTS) as target, sqlite_rig() as rig:
        rig.add_endpoints([target.url(number) for number in range(ENDPOINTS)])
        bare = yardstick(target, deliveries)
        one = drain(rig, target, 1, deliveries)
    return {
        "name": "sqlite",
        "figures": {"per_s": one["rate"], "worker_cpu_us": one["worker_cpu_us"]},
        "yardstick": {"bare_aiohttp_per_s": bare["rate"], "bare_aiohttp_cpu_us": bare["cpu_us"]},
        "ratio": {"rate": one["rate"] / bare["rate"]},
    }
