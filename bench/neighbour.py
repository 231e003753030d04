"""One endpoint of 100 never answers and has 20,000 due: what do the others notice?

Events for the healthy endpoints are committed at an even rate; their p99 from commit to receipt
is measured without the bad neighbour, then with it.
"""

from __future__ import annotations

from typing import Any

import uvloop

from bench.figures import percentiles
from bench.latency import publish_evenly
from bench.rig import TENANT, Target, postgresql_rig, running_target, wait_for

ENDPOINTS = 99
BACKLOG = 20_000
EVENTS_PER_S = 2
"""Each goes to all 99 healthy endpoints."""
SECONDS = 15.0
NEIGHBOUR = "neighbour"


def run() -> dict[str, Any]:
    """p99 of the healthy with the neighbour, beside p99 without it."""
    with running_target(ENDPOINTS + 1) as target:
        without = _measure(target, backlog=0)
        beside = _measure(target, backlog=BACKLOG)
    return {
        "name": "neighbour",
        "figures": {"healthy_ms": beside},
        "yardstick": {"healthy_without_it_ms": without},
        "ratio": {"p99": beside["p99"] / without["p99"], "p50": beside["p50"] / without["p50"]},
    }


def _measure(target: Target, backlog: int) -> dict[str, float]:
    with postgresql_rig() as rig:
        rig.add_endpoints([target.url(number) for number in range(ENDPOINTS)])
        if backlog:
            rig.add_endpoints([target.url(ENDPOINTS, "/never")], tenant=NEIGHBOUR)
            rig.publish(backlog, tenant=NEIGHBOUR)
        target.reset()
        with rig.workers():
            rig.publish(1)
            wait_for(lambda: _healthy(target) >= ENDPOINTS, 60)
            committed = uvloop.run(publish_evenly(rig, EVENTS_PER_S, SECONDS, TENANT))
            wait_for(lambda: _healthy(target) >= ENDPOINTS + len(committed), 60)
        return _percentiles(target, committed)


def _healthy(target: Target) -> int:
    bad = target.url(ENDPOINTS).split("/")[2].split(":")[0]
    return sum(address != bad for address in target.details()["addresses"])


def _percentiles(target: Target, committed: dict[str, float]) -> dict[str, float]:
    details = target.details()
    received = dict(zip(details["ids"], details["times"], strict=True))
    return percentiles([(received[id_] - at) * 1000 for id_, at in committed.items()])
