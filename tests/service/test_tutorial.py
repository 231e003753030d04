"""The tutorial works as it is written: its commands and its code are run."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from delivery_service.cli import app
from tests.support.ports import free_port
from tests.support.processes import ROOT, Processes
from tests.support.waiting import wait_until

TUTORIAL = ROOT / "docs" / "tutorial" / "first-webhook.md"


class Reader:
    """Somebody who follows the tutorial in a folder of their own."""

    def __init__(self, folder: Path, processes: Processes) -> None:
        # The tutorial's port may be in use on this machine.
        self.text = TUTORIAL.read_text(encoding="utf-8").replace("9000", str(free_port()))
        self.folder = folder
        self._processes = processes
        self.environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        for name, value in re.findall(r"^export (SUREHOOK_\w+)=(\S+)$", self.text, re.MULTILINE):
            self.environment[name] = value.replace("$PWD", str(folder))

    def command(self, start: str, **replaced: str) -> list[str]:
        """The arguments of the tutorial's command that starts so."""
        (line,) = re.findall(rf"^surehook ({start}.*)$", self.text, re.MULTILINE)
        for placeholder, value in replaced.items():
            line = line.replace(f"{placeholder}_…", value)
        return shlex.split(line)

    def run(self, start: str, *more: str, **replaced: str) -> str:
        """Run that command and return what it prints."""
        arguments = [*self.command(start, **replaced), *more]
        done = CliRunner().invoke(app, arguments, env=self.environment)
        assert done.exit_code == 0, done.output
        return done.stdout

    def start(self, *arguments: str) -> Any:
        return self._processes.start(
            sys.executable, *arguments, env=self.environment, cwd=self.folder
        )

    def save(self, name: str) -> None:
        """Save the code that the tutorial says to save under this name."""
        match = re.search(rf"`{name}`.*?```python\n(.*?)```", self.text, re.DOTALL)
        assert match is not None
        (self.folder / name).write_text(match[1], encoding="utf-8")


@pytest.fixture
def reader(tmp_path: Path, processes: Processes) -> Reader:
    return Reader(tmp_path, processes)


def test_the_tutorial(reader: Reader) -> None:
    up = reader.start("-m", "delivery_service.cli", *reader.command("up"), "--port", "0")
    up.wait_for("Listening on", deadline=60)
    added = reader.run("endpoint add")
    secret = re.search(r"whsec_\S+", added)
    assert secret
    assert "ep_" in added

    reader.save("shop.py")
    shop = reader.start("shop.py")
    assert shop.wait() == 0, shop.output
    assert "rolled back: the card was refused" in shop.output
    (delivery_id,) = re.findall(r"dlv_\w+", shop.output)

    def delivery() -> dict[str, Any]:
        return dict(json.loads(reader.run("deliveries show", "--json", dlv=delivery_id)))

    wait_until(lambda: delivery()["log"], what="the first attempt")
    assert [made["kind"] for made in delivery()["log"]] == ["connect"]
    listed = reader.run("deliveries list")
    assert delivery_id in listed
    assert listed.count("dlv_") == 1
    assert "pending" in listed

    reader.environment["WEBHOOK_SECRET"] = secret[0]
    reader.save("shop_receiver.py")
    receiver = reader.start("shop_receiver.py")
    wait_until(lambda: _retried(reader, receiver, delivery_id), deadline=60)
    wait_until(lambda: delivery()["status"] == "delivered", what="it is delivered")
    assert len({made["request_headers"]["webhook-id"] for made in delivery()["log"]}) == 1
    assert "attempt" in receiver.output
    assert '"customer":"Ada"' in receiver.output
    assert "refused" not in receiver.output
    assert up.terminate() == 0


def _retried(reader: Reader, receiver: Any, delivery_id: str) -> bool:
    """Ask for an attempt, until the receiver (which says nothing when it is ready) got one."""
    assert receiver.running, receiver.output
    if delivery_id not in receiver.output:
        arguments = reader.command("deliveries redeliver", dlv=delivery_id)
        CliRunner().invoke(app, arguments, env=reader.environment)
    return delivery_id in receiver.output
