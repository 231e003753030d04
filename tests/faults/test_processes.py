"""Workers that die, that are told to stop, whose clock is wrong, and that a delivery kills."""

from __future__ import annotations

import time
from datetime import timedelta
from itertools import cycle

import pytest

from tests.faults.field import LONG, Field, paths
from tests.support.receiver import Answer
from tests.support.waiting import wait_until

HOUR = timedelta(hours=1).total_seconds()


def test_h03_f14_one_of_three_workers_is_killed_every_second(field: Field) -> None:
    field.endpoints(*paths(3))
    for path in paths(3):
        field.receiver.script(path, Answer(delay=0.05))
    workers = [field.worker() for _ in range(3)]
    field.wait_for_workers(3)
    kills = 0
    with field.publishing(0.02):
        end = time.monotonic() + (60 if LONG else 6)
        for place in cycle(range(3)):
            # Not before it has come up, or nobody would ever work.
            replaced = workers[(place + 1) % 3]
            wait_until(lambda: field.receiver.requests and replaced.running)  # noqa: B023
            time.sleep(1)  # the test's own rhythm, not a wait for anything
            workers[place].kill()
            kills += 1
            workers[place] = field.worker()
            if time.monotonic() >= end:
                break
    field.wait_for_end(deadline=90)
    field.report(f"SIGKILL x {kills}")


def test_sigterm_while_draining_sends_nothing_twice(field: Field) -> None:
    field.endpoints(*paths(3))
    for path in paths(3):
        field.receiver.script(path, Answer(delay=0.2))
    field.publish(100)
    # Longer than a slow machine may take, shorter than the grace period.
    patient = {"attempt_timeout": 8, "lease": 20}
    first = field.worker(**patient)
    field.receiver.wait_for(50)
    began = time.monotonic()
    assert first.terminate(deadline=30) == 0
    took = time.monotonic() - began
    arrived = len(field.receiver.requests)
    assert arrived < len(field.published), "it was to be stopped half-way"
    # What it had in flight is recorded, and what it had not begun is free at once.
    assert field.pending() == len(field.published) - arrived
    assert took < 10 + 10, "grace and the recorder's own time"
    field.worker(**patient)
    field.wait_for_end()
    field.report("SIGTERM", duplicates=0)


@pytest.mark.parametrize("wrong", [HOUR, -HOUR], ids=["fast", "slow"])
def test_f36_clock_of_one_worker_an_hour_off(field: Field, wrong: float) -> None:
    field.endpoints(*paths(2))
    # Each delivery fails once, so there are due times to get wrong.
    seen: set[str | None] = set()

    def fail_once(request: object) -> Answer:
        id_ = request.header("webhook-id")  # type: ignore[attr-defined]
        fresh = id_ not in seen
        seen.add(id_)
        return Answer(503 if fresh else 200, delay=0.02)

    for path in paths(2):
        field.receiver.script(path, fail_once)
    off = field.fresh_worker("--clock", str(wrong))
    field.worker()
    field.wait_for_workers(2)
    field.publish(40)
    field.wait_for_end()
    # Whoever did it: two attempts each, a second apart. `report` checks the timestamps as well.
    arrived = field.report(f"clock {wrong:+.0f} s", duplicates=len(field.published))
    assert set(arrived.values()) == {2}
    by_id: dict[str | None, list[float]] = {}
    for request in field.receiver.requests:
        by_id.setdefault(request.header("webhook-id"), []).append(request.at)
    assert all(second - first >= 0.9 for first, second in by_id.values())
    assert off.running


class Poisoned:
    """A field with a delivery that kills its workers, and two workers that are started again."""

    faults = ("--poison", "deadly")

    def __init__(self, field: Field) -> None:
        self.field = field
        self.restarts = 0
        field.endpoints("/hook")
        (self.poison,) = field.publish(1, data="deadly")
        field.publish(6)
        self.workers = [field.worker(*self.faults) for _ in range(2)]

    def settled(self) -> bool:
        for place, worker in enumerate(self.workers):
            if not worker.running:
                assert worker.returncode == 70, worker.output
                self.restarts += 1
                self.workers[place] = self.field.worker(*self.faults)
        return not self.field.pending()


def test_f22_delivery_that_kills_its_worker_is_dead_and_the_others_arrive(
    both_fields: list[Field],
) -> None:
    poisoned = [Poisoned(field) for field in both_fields]
    # `min`, not `all`: both are looked after each time.
    wait_until(lambda: min(p.settled() for p in poisoned), deadline=90, what="empty queues")
    for each in poisoned:
        field = each.field
        assert field.statuses() == {("delivered", None): 6, ("dead", "poison"): 1}
        assert each.restarts == 3
        arrived = {request.header("webhook-id") for request in field.receiver.requests}
        assert arrived == field.published - {each.poison}
        print(f"poison [{field.kind}]: sent 7, received {len(arrived)}, dead 1, lost 0")
