"""`surehook up`, `api` and `worker` as real processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from delivery_service.cli import app
from tests.support.ports import HOST, free_port
from tests.support.processes import Process, Processes
from tests.support.receiver import HANG, Answer, Receiver
from tests.support.waiting import wait_until

COMMAND = (sys.executable, "-m", "delivery_service.cli")

Start = Callable[..., Process]
Run = Callable[..., Any]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {
        **os.environ,
        "SUREHOOK_DATABASE_URL": f"sqlite:///{tmp_path / 'surehook.sqlite3'}",
        "SUREHOOK_ALLOW_PRIVATE_NETWORKS": "true",
        "SUREHOOK_SCHEDULE": "fast",
        "SUREHOOK_POLL_INTERVAL": "0.1",
    }


@pytest.fixture
def start(processes: Processes, environment: dict[str, str]) -> Start:
    def start(*arguments: str, **variables: str) -> Process:
        return processes.start(*COMMAND, *arguments, env={**environment, **variables})

    return start


@pytest.fixture
def run(environment: dict[str, str]) -> Run:
    """Runs a command, in this process, and returns what its JSON says."""

    def run(*arguments: str) -> Any:
        done = CliRunner().invoke(app, arguments, env=environment)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout) if "--json" in arguments else done.stdout

    return run


def listening_on(process: Process) -> str:
    match = process.wait_for(r"Listening on (http://\S+)", deadline=60)
    assert match is not None
    return match[1]


def test_up_migrates_delivers_and_stops_cleanly(start: Start, run: Run, receiver: Receiver) -> None:
    process = start("up", "--port", "0")
    url = listening_on(process)
    key = run("keys", "create", "--json")["key"]
    endpoint = run("endpoint", "add", "--tenant", "acme", "--url", receiver.url("/hook"), "--json")
    receiver.script("/hook", Answer(500), Answer(204))
    body = json.dumps({"tenant": "acme", "type": "invoice.paid", "data": {"id": 1}}).encode()
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/events", body, headers, method="POST")
    with urllib.request.urlopen(request, timeout=20) as response:
        assert response.status == 202
        (delivery_id,) = json.load(response)["deliveries"]
    receiver.wait_for(2, "/hook")

    def status() -> str:
        found = run("deliveries", "show", delivery_id, "--json")
        assert found["endpoint_id"] == endpoint["id"]
        return str(found["status"])

    wait_until(lambda: status() == "delivered", deadline=60)
    with urllib.request.urlopen(f"{url}/healthz", timeout=20) as response:
        assert response.status == 200
    assert process.terminate() == 0
    assert "worker_stopped" in process.output
    assert "Traceback" not in process.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_is_stopped_finishes_what_is_in_flight(
    start: Start, run: Run, receiver: Receiver, number: signal.Signals
) -> None:
    run("migrate")
    run("endpoint", "add", "--tenant", "acme", "--url", receiver.url("/slow"))
    run("publish", "--tenant", "acme", "--type", "invoice.paid", "--data", "{}")
    receiver.script("/slow", Answer(204, delay=1.0))
    process = start("worker")
    receiver.wait_for(1, "/slow", deadline=60)
    process.send_signal(number)
    assert process.wait() == 0, process.output
    (row,) = run("deliveries", "list", "--json")
    assert row["status"] == "delivered"
    assert len(receiver.requests) == 1


def test_a_second_signal_does_not_wait(start: Start, run: Run, receiver: Receiver) -> None:
    run("migrate")
    run("endpoint", "add", "--tenant", "acme", "--url", receiver.url("/hang"))
    run("publish", "--tenant", "acme", "--type", "invoice.paid", "--data", "{}")
    receiver.script("/hang", HANG)
    process = start(
        "worker",
        SUREHOOK_ATTEMPT_TIMEOUT="600",
        SUREHOOK_LEASE="900",
        SUREHOOK_SHUTDOWN_GRACE="600",
    )
    receiver.wait_for(1, "/hang", deadline=60)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 2
    assert "stopped at once" in process.output
    assert "Traceback" not in process.output


def test_a_port_in_use_is_one_line(start: Start, run: Run) -> None:
    run("migrate")
    with socket.create_server((HOST, 0)) as taken:
        process = start("api", "--port", str(taken.getsockname()[1]))
        assert process.wait() == 2
    assert "host, port: can't listen" in process.output
    assert "Traceback" not in process.output


def test_f31_three_containers_start_on_an_empty_database(start: Start, run: Run) -> None:
    started = [start("up", "--port", "0") for _ in range(3)]
    for process in started:
        listening_on(process)
    assert run("migrate", "--check").endswith("(head).\n")
    for process in started:
        assert process.terminate() == 0, process.output


def test_several_workers_share_the_work_and_stop_together(
    start: Start, run: Run, receiver: Receiver
) -> None:
    run("migrate")
    run("endpoint", "add", "--tenant", "acme", "--url", receiver.url("/hook"))
    for number in range(20):
        run("publish", "--tenant", "acme", "--type", "invoice.paid", "--data", str(number))
    process = start("worker", "--processes", "2")
    receiver.wait_for(20, "/hook", deadline=60)
    process.wait_for(lambda: process.output.count('"event":"worker_started"') == 2, deadline=60)
    assert process.terminate() == 0, process.output
    assert process.output.count('"event":"worker_stopped"') == 2
    assert "Traceback" not in process.output
    assert len(receiver.requests) == 20
    assert len(run("deliveries", "list", "--status", "delivered", "--json")) == 20


def test_several_workers_on_an_empty_database_say_once_what_to_do(start: Start, run: Run) -> None:
    run("migrate")
    run("migrate", "--downgrade", "base", "--yes")
    process = start("worker", "--processes", "3")
    assert process.wait() == 2
    assert process.output.count("surehook migrate") == 1
    assert process.output.count("\n") == 1


def test_up_serves_metrics(start: Start) -> None:
    port = free_port()
    process = start("up", "--port", "0", SUREHOOK_METRICS_PORT=str(port))
    listening_on(process)
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=20) as response:
        assert b"surehook" in response.read()
    assert process.terminate() == 0, process.output
