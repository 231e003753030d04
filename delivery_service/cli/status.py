"""`surehook status`: whether deliveries flow, and who holds them up."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from delivery_service.cli.failing import CommandError, explained
from delivery_service.cli.lengths import length_of, spoken
from delivery_service.cli.opening import in_database
from delivery_service.cli.output import AsJson, console, encoded, plain, print_json, table
from delivery_service.cli.overview import MOST_COUNTED, overview
from delivery_service.settings import Settings
from delivery_service.store.database import Database

LONGEST_WINDOW = timedelta(days=1)

WORKERS = ("id", "host", "pid", "seen", "alive")
ENDPOINTS = (
    "id", "tenant_id", "url", "circuit", "paused_until", "failing_since", "failed", "mostly",
    "waiting",
)  # fmt: skip


def status(
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show it again and again, until Ctrl+C.")
    ] = False,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between, with --watch.")] = 2.0,
    window: Annotated[str, typer.Option(help="Time that rates are taken over, at most 1d.")] = "5m",
    as_json: AsJson = False,
) -> None:
    """Show whether deliveries flow: the oldest due one, how much waits, rates, the worst
    endpoints, workers.

    With --watch and --json, one JSON object a line. What is wrong is said in sentences at the top,
    and under `problems` in JSON.
    """
    span = length_of("window", window)
    if not timedelta() < span <= LONGEST_WINDOW:
        raise CommandError("window: more than 0 and at most 1d")

    async def work(database: Database, settings: Settings) -> None:
        if watch:
            await _watch(database, settings, span, every, as_json=as_json)
            return
        found = await database.read(overview, settings, span)
        if as_json:
            print_json(found)
        else:
            console().print(_page(found))

    try:
        in_database(work)
    except KeyboardInterrupt:
        if not watch:  # otherwise it is how it ends
            raise


async def _watch(
    database: Database, settings: Settings, window: timedelta, every: float, *, as_json: bool
) -> None:
    async def look() -> Mapping[str, Any]:
        # The database may well be what is wrong tonight: then that is shown, for as long as it is.
        try:
            return await database.read(overview, settings, window)
        except Exception as error:
            message = explained(error)
            if message is None:
                raise
            return {"problems": [message]}

    if as_json or not sys.stdout.isatty():
        while True:
            found = await look()
            if as_json:
                typer.echo(json.dumps(found, ensure_ascii=False, default=encoded))
            else:
                console().print(_page(found))
            sys.stdout.flush()
            await asyncio.sleep(every)
    with Live(console=console(), screen=True, auto_refresh=False) as live:
        while True:
            live.update(_page(await look()), refresh=True)
            await asyncio.sleep(every)


def _page(found: Mapping[str, Any]) -> RenderableType:
    return Group(*_parts(found))


def _parts(found: Mapping[str, Any]) -> Iterator[RenderableType]:
    for problem in found["problems"]:
        yield Text(f"! {plain(problem)}", style="bold red")
    if "queue" not in found:
        return
    if not found["problems"]:
        yield Text("Deliveries flow.", style="green")
    yield Text()
    for name, value in _lines(found):
        yield Text(f"{name + ':':<18}{value}")
    if found["worst_endpoints"]:
        yield Text("\nWorst endpoints", style="bold")
        yield table(found["worst_endpoints"], ENDPOINTS)
    if found["workers"]:
        yield Text("\nWorkers", style="bold")
        workers = [{**row, "seen": f"{spoken(row['seen_age'])} ago"} for row in found["workers"]]
        yield table(workers, WORKERS)


def _lines(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    queue, rates = found["queue"], found["rates"]
    age = found["oldest_due_age"]
    more = f"more than {MOST_COUNTED:,}"
    yield "oldest due", "nothing is due" if age is None else f"for {spoken(age)}"
    yield "due", more if queue["due_is_more"] else f"{queue['due']:,}"
    yield "in flight", f"{queue['in_flight']:,}"
    yield "scheduled", more if queue["scheduled_is_more"] else f"{queue['scheduled']:,}"
    share = rates["delivered_share"]
    accepted = "" if share is None else f", {share:.1%} accepted"
    yield (
        f"last {spoken(rates['window_seconds']).removesuffix(' 0 s')}",
        f"{rates['published']:g} events/s published, {rates['attempts']:g} attempts/s{accepted}",
    )
    number = found["endpoints"]
    broken = f"{found['circuits']['open']:,} with open circuit"
    yield "endpoints", f"{number['enabled']:,} enabled ({broken}), {number['disabled']:,} disabled"
    alive = sum(worker["alive"] for worker in found["workers"])
    yield "workers", f"{alive} alive, {len(found['workers']) - alive} not seen lately"
