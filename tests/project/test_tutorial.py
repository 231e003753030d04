"""The tutorial and the README, done to the letter: only ports and placeholders are filled in."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.ports import accepts, free_port
from tests.support.processes import ROOT, Process, Processes
from tests.support.waiting import wait_until

Block = tuple[str, str]

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def sections(page: str) -> dict[str, list[Block]]:
    """The code blocks (language, text) under each heading of the second level."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.split(r"^## (.*)$", text, flags=re.MULTILINE)
    return {
        title: _BLOCK.findall(body) for title, body in zip(found[1::2], found[2::2], strict=True)
    }


class Terminals:
    """Shells in one folder, in which `surehook` is the command line under test."""

    def __init__(self, processes: Processes, folder: Path, port: int) -> None:
        self.folder = folder
        self._processes = processes
        programs = folder / "programs"
        programs.mkdir()
        for name, words in {
            "surehook": f"{sys.executable} -m delivery_service.cli",
            "python": sys.executable,
        }.items():
            (programs / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
            (programs / name).chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if "SUREHOOK" not in name}
        self._environment = {
            **kept,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "SUREHOOK_PORT": str(port),
        }
        self.exports: list[str] = []

    def open(self, script: str) -> Process:
        """Run a block in a terminal of its own, in which everything exported so far is set."""
        lines = "\n".join(["set -e", *self.exports, script])
        return self._processes.start("bash", "-c", lines, env=self._environment, cwd=self.folder)

    def export(self, script: str) -> None:
        """Set the variables of a block in all terminals opened from now on."""
        self.exports += [line for line in script.splitlines() if line.startswith("export ")]

    def run(self, script: str) -> str:
        """Run a block to its end; returns what it printed."""
        process = self.open(script)
        assert process.wait() == 0, process.output
        return process.output


@pytest.fixture
def api_port() -> int:
    return free_port()


@pytest.fixture
def terminals(processes: Processes, tmp_path: Path, api_port: int) -> Terminals:
    return Terminals(processes, tmp_path, api_port)


def test_the_first_webhook(terminals: Terminals) -> None:
    steps = sections("docs/tutorial/first-webhook.md")
    port = str(free_port())

    def code(step: str) -> list[str]:
        title = next(title for title in steps if title.startswith(step))
        return [text.replace("9000", port) for _, text in steps[title]]

    (install,) = code("1.")
    assert 'pip install "surehook[service]"' in install  # it needs the internet

    (start,) = code("2.")
    terminals.export(start)
    service = terminals.open(start)
    service.wait_for("Listening on", deadline=60)

    add, keep = code("3.")
    secret = re.search(r"whsec_[A-Za-z0-9+/=]+", terminals.run(add))
    assert secret is not None
    assert keep.strip() == "export WEBHOOK_SECRET=whsec_…"
    terminals.export(keep.replace("whsec_…", secret[0]))

    shop, buy = code("4.")
    (terminals.folder / "shop.py").write_text(shop)
    told = terminals.run(buy)
    assert re.search(r"^published evt_\S+ \('dlv_\S+',\)$", told, re.MULTILINE), told
    assert "rolled back: the card was refused" in told
    (delivery_id,) = set(re.findall(r"dlv_[0-9A-Z]{26}", told))
    show = f"surehook deliveries show {delivery_id} --json"

    def failed_once() -> bool:
        found = json.loads(terminals.run(show))
        return [attempt["kind"] for attempt in found["log"]] == ["connect"]

    wait_until(failed_once, deadline=60)
    listed = json.loads(terminals.run("surehook deliveries list --tenant acme --json"))
    assert [(row["id"], row["status"]) for row in listed] == [(delivery_id, "pending")]

    program, again = code("5.")
    (terminals.folder / "shop_receiver.py").write_text(program)
    receiver = terminals.open("exec python shop_receiver.py")
    wait_until(lambda: accepts(int(port)))
    terminals.run(again.replace("dlv_…", delivery_id))
    receiver.wait_for(rf"attempt 2 of {delivery_id} .*Ada")
    wait_until(lambda: json.loads(terminals.run(show))["status"] == "delivered", deadline=60)
    assert "Traceback" not in service.output


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_service_door_of_the_readme(terminals: Terminals, api_port: int) -> None:
    title = next(title for title in sections("README.md") if title.startswith("Service door"))
    ((_, script),) = sections("README.md")[title]
    up, create, curl = re.split(r"\n(?=surehook keys|curl)|\n\n(?=curl)", script.strip())
    assert up.startswith("surehook up")
    terminals.open(up).wait_for("Listening on", deadline=60)
    assert create.startswith("surehook keys create")
    key = re.search(r"shk_\S+|\b[a-z]+_[A-Za-z0-9_-]{30,}", terminals.run(create))
    assert key is not None
    terminals.exports.append(f"export SUREHOOK_KEY={key[0]}")
    assert "127.0.0.1:8080" in curl
    answer = terminals.run(curl.replace("8080", str(api_port)))
    assert re.search(r'"id":\s*"evt_', answer), answer
