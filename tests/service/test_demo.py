"""`surehook demo`, run for real; and that it does not call a failure a success."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from delivery_service.cli.demo.receiver import FLAKY, STEADY, Arrival, Books
from delivery_service.cli.demo.verdict import EXPECTED, Story, verdict
from sender.publish import Published
from tests.support.ports import accepts
from tests.support.processes import Process, Processes
from tests.support.waiting import wait_until

COMMAND = (sys.executable, "-m", "delivery_service.cli", "demo")


def start(processes: Processes, folder: Path, *arguments: str) -> Process:
    # Settings of another service in the caller's environment must not matter.
    environment = {
        **os.environ,
        "TMPDIR": str(folder),
        "SUREHOOK_DATABASE_URL": "postgresql://127.0.0.1:1/elsewhere",
        "SUREHOOK_SCHEDULE": "30d",
    }
    return processes.start(*COMMAND, *arguments, env=environment)


def test_demo_shows_the_main_job_and_leaves_nothing(processes: Processes, tmp_path: Path) -> None:
    process = start(processes, tmp_path)
    assert process.wait(deadline=120) == 0, process.output
    told = re.findall(r"s  (/\S+) +attempt (\d): ([^;]+);", process.output)
    assert [found for found in told if found[0] == FLAKY] == [
        (FLAKY, "1", "status 500"),
        (FLAKY, "2", "timeout"),
        (FLAKY, "3", "delivered 204"),
    ]
    assert (STEADY, "1", "delivered 204") in told
    assert "Rolled back" in process.output
    assert process.output.count("✓") == 6
    assert "✗" not in process.output
    assert "Traceback" not in process.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_demo_keeps_running_until_it_is_stopped(
    processes: Processes, tmp_path: Path, number: signal.Signals
) -> None:
    process = start(processes, tmp_path, "--keep")
    process.wait_for("still running", deadline=120)
    service = re.search(r"service +(http://127\.0\.0\.1:(\d+))", process.output)
    receiver = re.search(r"receiver +http://127\.0\.0\.1:(\d+)", process.output)
    key = re.search(r"API key +(shk_\S+)", process.output)
    assert service
    assert receiver
    assert key
    request = urllib.request.Request(
        f"{service[1]}/v1/deliveries", headers={"authorization": f"Bearer {key[1]}"}
    )
    with urllib.request.urlopen(request, timeout=20) as response:
        assert len(json.load(response)["items"]) == 2
    assert process.running
    process.send_signal(number)
    assert process.wait() == 0, process.output
    wait_until(lambda: not accepts(int(service[2])) and not accepts(int(receiver[1])))
    assert list(tmp_path.iterdir()) == []


def test_demo_that_is_interrupted_ends_the_service(processes: Processes, tmp_path: Path) -> None:
    process = start(processes, tmp_path)
    match = process.wait_for(r"service +http://127\.0\.0\.1:(\d+)", deadline=120)
    assert match
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 130
    assert "Traceback" not in process.output
    wait_until(lambda: not accepts(int(match[1])))
    assert list(tmp_path.iterdir()) == []


PUBLISHED = Published("evt_1", ("dlv_1", "dlv_2"))
IDS = {FLAKY: "dlv_1", STEADY: "dlv_2"}


@pytest.fixture
def story() -> Story:
    arrivals = [
        Arrival(path, IDS[path], str(number), path.encode(), verified=True)
        for path, made in EXPECTED.items()
        for number, _, _ in made
    ]
    return Story(
        published=PUBLISHED,
        rolled_back="Bob",
        customers=["Ada"],
        events=[{"id": "evt_1"}],
        deliveries={path: {"status": "delivered"} for path in EXPECTED},
        attempts={
            path: [{"number": n, "kind": kind, "status_code": code} for n, kind, code in made]
            for path, made in EXPECTED.items()
        },
        books=Books(arrivals=arrivals, effects=Counter(IDS.values())),
    )


def broken(story: Story) -> list[int]:
    return [number for number, (_, holds) in enumerate(verdict(story)) if not holds]


def test_the_verdict_on_a_good_story(story: Story) -> None:
    assert broken(story) == []


def _attempt_missing(story: Story) -> Story:
    return replace(story, attempts={**story.attempts, FLAKY: story.attempts[FLAKY][:-1]})


def _delivery_dead(story: Story) -> Story:
    return replace(story, deliveries={**story.deliveries, FLAKY: {"status": "dead"}})


def _arrived_twice(story: Story) -> Story:
    story.books.arrivals.append(story.books.arrivals[-1])
    return story


def _other_bytes(story: Story) -> Story:
    story.books.arrivals[1] = replace(story.books.arrivals[1], body=b"other")
    return story


def _other_id(story: Story) -> Story:
    story.books.arrivals[1] = replace(story.books.arrivals[1], delivery_id="dlv_9")
    return story


def _unverified(story: Story) -> Story:
    story.books.arrivals[0] = replace(story.books.arrivals[0], verified=False)
    return story


def _two_effects(story: Story) -> Story:
    story.books.effects["dlv_1"] = 2
    return story


def _no_effect(story: Story) -> Story:
    del story.books.effects["dlv_2"]
    return story


def _invoice_left(story: Story) -> Story:
    return replace(story, customers=["Ada", "Bob"])


def _event_left(story: Story) -> Story:
    return replace(story, events=[*story.events, {"id": "evt_2"}])


def _rolled_back_was_sent(story: Story) -> Story:
    bodies = [replace(arrival, body=b'"Bob"') for arrival in story.books.arrivals]
    story.books.arrivals[:] = bodies
    return story


@pytest.mark.parametrize(
    ("spoil", "claim"),
    [
        (_attempt_missing, 0),
        (_delivery_dead, 1),
        (_arrived_twice, 2),
        (_other_bytes, 2),
        (_other_id, 2),
        (_unverified, 3),
        (_two_effects, 4),
        (_no_effect, 4),
        (_invoice_left, 5),
        (_event_left, 5),
        (_rolled_back_was_sent, 5),
    ],
)
def test_the_verdict_on_a_spoilt_story(
    story: Story, spoil: Callable[[Any], Story], claim: int
) -> None:
    assert broken(spoil(story)) == [claim]
