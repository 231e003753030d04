"""What the demo shows: a live table on a terminal, a line for each change elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.live import Live
from rich.table import Table
from rich.text import Text

from delivery_service.cli.output import cell, console


@dataclass(frozen=True)
class Tracked:
    """A delivery and its attempts as the admin API shows them."""

    path: str
    delivery: dict[str, Any]
    attempts: list[dict[str, Any]]


class Screen:
    """Standard output."""

    def __init__(self) -> None:
        self._console = console()
        self._began = time.monotonic()
        self._told: set[tuple[str, int]] = set()

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, soft_wrap=True)

    @contextmanager
    def live(self) -> Iterator[Callable[[list[Tracked]], None]]:
        """Give the function that shows how things stand."""
        if not self._console.is_terminal:
            yield self._tell
            return
        with Live(console=self._console, auto_refresh=False) as live:
            yield lambda tracked: live.update(_state(tracked), refresh=True)

    def _tell(self, tracked: list[Tracked]) -> None:
        for each in tracked:
            for made in each.attempts:
                if (made["id"], made["number"]) not in self._told:
                    self._told.add((made["id"], made["number"]))
                    after = time.monotonic() - self._began
                    self.say(
                        f"  {after:5.1f} s  {each.path:<12} attempt {made['number']}:"
                        f" {_outcome(made)}; the delivery is {each.delivery['status']}"
                    )

    def log(self, tracked: list[Tracked]) -> None:
        """Print the attempt log."""
        self.say("\nThe attempt log, read from the admin API:")
        for each in tracked:
            self.say(f"\n{each.path}: delivery {each.delivery['id']}")
            table = Table(box=box.SIMPLE_HEAD)
            for name in ("attempt", "started", "seconds", "outcome", "error"):
                table.add_column(name)
            for made in each.attempts:
                row = (made["number"], made["started_at"], made["duration"], _outcome(made))
                table.add_row(*map(cell, row), cell(made["error"]))
            self._console.print(table)

    def claims(self, claims: list[tuple[str, bool]]) -> None:
        """Print each claim and whether it holds."""
        for claim, holds in claims:
            mark = Text("✓ ", "green") if holds else Text("✗ NOT TRUE: ", "bold red")
            self._console.print(mark + Text(claim), soft_wrap=True)


def _outcome(made: dict[str, Any]) -> str:
    status = made["status_code"]
    return made["kind"] if status is None else f"{made['kind']} {status}"


def _state(tracked: list[Tracked]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("endpoint", "delivery", "status", "attempts"):
        table.add_column(name, no_wrap=name != "attempts")
    for each in tracked:
        steps = [_outcome(made) for made in each.attempts]
        if each.delivery["in_flight"]:
            steps.append("sending …")
        elif each.delivery["status"] == "pending":
            steps.append("waiting …")
        table.add_row(
            each.path, each.delivery["id"], cell(each.delivery["status"]), " → ".join(steps)
        )
    return table
