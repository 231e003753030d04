"""Faults that the model found, each as the shortest story that shows it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.model import invariants
from tests.model.bench import Bench
from tests.model.world import World


@pytest.fixture
def world(memory: Path) -> Iterator[World]:
    bench = Bench(f"sqlite:///{memory / 'model.sqlite3'}")
    yield bench.world()
    bench.close()


def test_endpoint_that_succeeds_after_a_failure_of_the_same_group_stays_enabled(
    world: World,
) -> None:
    world.add_endpoint("acme")
    (worker, *_) = world.workers
    for outcomes in (["500"], ["500", "200"]):
        world.publish("acme")
        world.claim(worker, "ok")
        for held, outcome in zip(worker.unsent, outcomes, strict=True):
            world.start(worker, held)
            world.finish(worker, held, outcome)
        world.record(worker, 100, "ok")
        world.clock.advance(timedelta(hours=3))  # longer than disable_after
    (endpoint,) = world.expected.endpoints.values()
    assert endpoint.enabled
    world.write(invariants.check, world.expected)
