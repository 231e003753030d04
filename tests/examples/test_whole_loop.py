"""The complete loop: a Surehook service, a receiver that crashes at random, and one effect each."""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import httpx
from sqlalchemy import Engine, NullPool, create_engine, text
from typer.testing import CliRunner

from delivery_service.cli import app as command_line
from tests.support.ports import accepts, free_port
from tests.support.processes import Process, Processes
from tests.support.waiting import wait_until

EVENTS, MISSED = 200, 20
SCHEDULE = "500ms,1s,2s,3s,5s"
ENTRIES = (
    "CREATE TABLE entries (number INTEGER PRIMARY KEY GENERATED ALWAYS AS IDENTITY, "
    "message VARCHAR(255), cents INTEGER)"
)


class Surehook:
    """The service, as ``surehook up`` runs it, and a key for what is to be done with it."""

    def __init__(self, processes: Processes, folder: Path) -> None:
        self._environment = {
            "SUREHOOK_DATABASE_URL": f"sqlite:///{folder / 'surehook.sqlite3'}",
            "SUREHOOK_ALLOW_PRIVATE_NETWORKS": "true",
            "SUREHOOK_SCHEDULE": SCHEDULE,
            "SUREHOOK_POLL_INTERVAL": "0.1",
            "SUREHOOK_ATTEMPT_TIMEOUT": "5",
            "SUREHOOK_ENDPOINT_CONCURRENCY": "4",
            # Retries use up their attempts while the receiver is down, and the feed has the rest.
            "SUREHOOK_CIRCUIT_OPEN_AFTER": "1000000",
        }
        command = (sys.executable, "-m", "delivery_service.cli", "up", "--port", "0")
        process = processes.start(*command, env=self._environment)
        match = process.wait_for(r"Listening on (http://\S+)", deadline=60)
        assert match is not None
        self.url = match[1]
        self.key = self.run("keys", "create")["key"]
        headers = {"authorization": f"Bearer {self.key}"}
        self.client = httpx.Client(base_url=self.url, headers=headers, timeout=30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def run(self, *arguments: str) -> Any:
        done = CliRunner().invoke(command_line, [*arguments, "--json"], env=self._environment)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    def call(self, method: str, path: str, **options: Any) -> Any:
        answer = self.client.request(method, path, **options).raise_for_status()
        return answer.json() if answer.content else None

    def publish(self, numbers: range) -> dict[str, int]:
        """Publish an event for each number; gives the numbers by delivery."""
        events = [
            {"tenant": "acme", "type": "invoice.paid", "data": {"cents": number}}
            for number in numbers
        ]
        done = self.call("POST", "/v1/events/batch", json={"events": events})["items"]
        return {each["deliveries"][0]: number for each, number in zip(done, numbers, strict=True)}

    def is_pending(self) -> bool:
        query = {"status": "pending", "limit": 1}
        return bool(self.call("GET", "/v1/deliveries", params=query)["items"])

    def statuses(self) -> Counter[str]:
        found: Counter[str] = Counter()
        cursor = None
        while True:
            query = {"limit": 50, **({"cursor": cursor} if cursor else {})}
            page = self.call("GET", "/v1/deliveries", params=query)
            found.update(item["status"] for item in page["items"])
            cursor = page["next_cursor"]
            if cursor is None:
                return found


class Crashing:
    """Programs that die with exit code 9 and are started again, each time with another seed."""

    def __init__(self, processes: Processes, environment: dict[str, str]) -> None:
        self._processes = processes
        self._environment = environment
        self._seeds = itertools.count(1)
        self.crashes = 0

    def start(self, *arguments: str) -> Process:
        environment = {**self._environment, "CRASH_SEED": str(next(self._seeds))}
        return self._processes.python(*arguments, env=environment)

    def served(self, port: int, begin: Callable[[], None], finished: Callable[[], bool]) -> None:
        """Serve, `begin` when it listens, and go on until `finished`, which is asked often."""
        where = ("uvicorn", "tests.examples.crashing_ledger:app", "--log-level", "warning")
        server = self.start(*where, "--port", str(port))
        server.wait_for(lambda: accepts(port))
        begin()

        def settled() -> bool:
            nonlocal server
            if not server.running:
                assert server.returncode == 9, server.output
                self.crashes += 1
                server = self.start(*where, "--port", str(port))
                wait_until(lambda: accepts(port) or not server.running, deadline=60)
            return finished()

        wait_until(settled, deadline=180, what="the end of every delivery")
        server.kill()

    def drained(self) -> re.Match[str]:
        """Drain the feed until a run gets to its end."""
        while True:
            program = self.start("tests.examples.crashing_ledger")
            if program.wait() == 0:
                match = re.search(r"drained (\d+) (\d+) (\d+) (\d+)", program.output)
                assert match is not None, program.output
                return match
            assert program.returncode == 9, program.output
            self.crashes += 1


def test_every_event_has_one_effect_though_the_receiver_crashes_at_random(
    processes: Processes, postgresql_url: str, tmp_path: Path
) -> None:
    """By retries and, for what used them up, by the feed; effect and claim are one transaction."""
    database = postgresql_url.replace("+asyncpg", "+psycopg")
    engine = create_engine(database, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text(ENTRIES))
    with Surehook(processes, tmp_path) as surehook:
        complete_loop(surehook, processes, database, engine)


def complete_loop(surehook: Surehook, processes: Processes, database: str, engine: Engine) -> None:
    port = free_port()
    target = f"http://127.0.0.1:{port}/hooks"
    endpoint = surehook.run("endpoint", "add", "--tenant", "acme", "--url", target)
    key = surehook.run("keys", "create", "--scope", "tenant", "--tenant", "acme")["key"]
    receivers = Crashing(
        processes,
        {
            "DATABASE_URL": database,
            "WEBHOOK_SECRET": endpoint["secret"],
            "HOOKS_URL": surehook.url,
            "HOOKS_KEY": key,
            "HOOKS_ENDPOINT": endpoint["id"],
            "CRASH_RATE": "0.015",
        },
    )
    # Of what is published while the endpoint is disabled, only the feed will tell.
    path = f"/v1/endpoints/{endpoint['id']}"
    surehook.call("POST", f"{path}/disable")
    wanted = surehook.publish(range(MISSED))
    surehook.call("POST", f"{path}/enable")
    receivers.served(
        port,
        lambda: wanted.update(surehook.publish(range(MISSED, EVENTS))),
        lambda: not surehook.is_pending(),
    )
    pushed = surehook.statuses()
    in_server = receivers.crashes
    drained = receivers.drained()
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT message, cents FROM entries")).all()
    left = EVENTS - pushed["delivered"]
    print(f"{EVENTS} events: {pushed['delivered']} delivered by push, {left} left to the feed")
    print(
        f"{in_server} crashes of the server, {receivers.crashes - in_server} of the feed's reader"
    )
    print(f"{len(rows)} effects")
    assert sorted(rows) == sorted(wanted.items()), "one effect of each event"
    assert receivers.crashes > 0
    assert pushed["delivered"] > 0
    assert pushed["skipped"] == MISSED
    assert drained.group(3, 4) == ("0", "0")
    assert surehook.statuses() == {"delivered": EVENTS}
