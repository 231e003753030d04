"""`surehook recover`, `replay` and `operations`: work on many deliveries at once."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from sqlalchemy import Connection

from delivery_service.cli.failing import CommandError
from delivery_service.cli.opening import in_database
from delivery_service.cli.output import AsJson, Before, Limit, print_fields, print_json, print_rows
from delivery_service.settings import Settings
from delivery_service.store import audit, bulk, operations
from delivery_service.store.bulk import Filter
from delivery_service.store.database import Database
from wire.envelope import parse_timestamp
from wire.errors import SurehookError
from wire.schedule import RetrySchedule

app = typer.Typer(
    help="Bulk operations: recover, replay, cancel and broadcast.", no_args_is_help=True
)

LISTED = (
    "id", "kind", "status", "matched", "done", "passed_over", "created_at", "ended_at", "filter",
)  # fmt: skip
ACTOR = "command line"
LOOK_EVERY = 0.2
"""Seconds between two looks at the progress."""

Id = Annotated[str, typer.Argument(metavar="ID", help="op_…")]
Since = Annotated[
    str,
    typer.Option(help="Deliveries created since: a length of time such as `2h`, or RFC 3339."),
]
Until = Annotated[
    str | None, typer.Option(help="Deliveries created before: as --since. Left out, before now.")
]
Tenant = Annotated[str | None, typer.Option(help="Only this tenant's.")]
Endpoint = Annotated[str | None, typer.Option(help="Only to this endpoint (ep_…).")]
Type = Annotated[str | None, typer.Option("--type", help="Only this event type.")]
IdempotencyKey = Annotated[
    str | None,
    typer.Option(
        help="A repeat with the same key and options shows the first operation instead of starting"
        " another; give times as RFC 3339."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count, and change nothing.")]
Wait = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Show progress until the end, or return at once.")
]


class Undelivered(StrEnum):
    """The states that can be recovered from."""

    DEAD = "dead"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


class Ended(StrEnum):
    """The states that can be replayed from."""

    DELIVERED = "delivered"
    DEAD = "dead"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


def recover(
    since: Since,
    until: Until = None,
    tenant: Tenant = None,
    endpoint: Endpoint = None,
    type_: Type = None,
    status: Annotated[
        Undelivered | None,
        typer.Option(help="Only those in this state; cancelled ones only if it is asked for."),
    ] = None,
    idempotency_key: IdempotencyKey = None,
    dry_run: DryRun = False,
    wait: Wait = True,
    as_json: AsJson = False,
) -> None:
    """Redeliver everything that was not delivered: same ids, fresh schedules.

    Works in the background, in batches: an interrupted one is gone on with by any running process.
    """
    where = _filter(since, until, tenant, endpoint, type_, status)
    if dry_run:
        _count(bulk.RECOVER, where, as_json=as_json)
    else:
        _start(bulk.RECOVER, where, idempotency_key, wait=wait, as_json=as_json)


def replay(
    since: Since,
    until: Until = None,
    tenant: Tenant = None,
    endpoint: Endpoint = None,
    type_: Type = None,
    status: Annotated[
        Ended | None,
        typer.Option(help="Only those in this state; cancelled ones only if it is asked for."),
    ] = None,
    idempotency_key: IdempotencyKey = None,
    dry_run: DryRun = False,
    wait: Wait = True,
    as_json: AsJson = False,
) -> None:
    """Redeliver everything that has ended, also what was delivered.

    Receivers that remember the ids of deliveries ignore those that they have handled.
    """
    where = _filter(since, until, tenant, endpoint, type_, status)
    if dry_run:
        _count(bulk.REPLAY, where, as_json=as_json)
    else:
        _start(bulk.REPLAY, where, idempotency_key, wait=wait, as_json=as_json)


@app.command("list")
def list_(limit: Limit = 50, before: Before = None, as_json: AsJson = False) -> None:
    """List operations, newest first."""
    rows = in_database(
        lambda database, _: database.read(operations.page, limit=limit, before=before)
    )
    if as_json:
        print_json([_shown(row) for row in rows])
        return
    readable = [
        {**row, "passed_over": _counts(row["passed_over"]), "filter": _counts(row["filter"])}
        for row in rows
    ]
    print_rows(readable, LISTED, none="There are no operations.")


@app.command()
def show(
    operation_id: Id,
    wait: Annotated[bool, typer.Option("--wait", help="Show progress until the end.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show an operation and its progress."""

    async def work(database: Database, _settings: Settings) -> dict[str, Any]:
        row = await database.read(_get, operation_id)
        return await _watch(database, row, is_quiet=as_json) if wait else row

    _print(in_database(work), as_json=as_json)


@app.command()
def cancel(operation_id: Id) -> None:
    """Stop an operation. What it has done stays."""

    def work(connection: Connection) -> None:
        row = _get(connection, operation_id)
        if not operations.cancel(connection, operation_id):
            raise CommandError(f"{operation_id} is {row['status']}")
        _note(connection, "operation.cancelled", operation_id, row["filter"])

    in_database(lambda database, _: database.write(work))
    typer.echo(f"{operation_id} is cancelled.")


def _count(kind: str, where: Filter, *, as_json: bool) -> None:
    async def count(database: Database, settings: Settings) -> dict[str, Any]:
        possible, passed_over = await bulk.count(database.read, kind, where, settings.replay_window)
        matched = possible + passed_over.total()
        return {
            "kind": kind,
            "matched": matched,
            "possible": possible,
            "passed_over": dict(passed_over),
        }

    _print(in_database(count), as_json=as_json)


def _start(kind: str, where: Filter, key: str | None, *, wait: bool, as_json: bool) -> None:
    async def start(database: Database, settings: Settings) -> dict[str, Any]:
        row = await database.write(_add, kind, where, key)
        if not wait:
            return row
        async with _helping(database, settings, row["id"]):
            return await _watch(database, row, is_quiet=as_json)

    done = in_database(start)
    _print(done, as_json=as_json)
    if done["status"] in (operations.FAILED, operations.CANCELLED):
        raise typer.Exit(1)


def _add(connection: Connection, kind: str, where: Filter, key: str | None) -> dict[str, Any]:
    added = operations.add(connection, kind, where.to_json(), idempotency_key=key)
    if not added.is_same:
        raise CommandError(f"idempotency-key: {key!r} belongs to {added.id}, which differs")
    if added.is_new:
        _note(connection, "operation.created", added.id, where.to_json())
    return _get(connection, added.id)


def _note(connection: Connection, action: str, operation_id: str, where: dict[str, Any]) -> None:
    audit.add(
        connection,
        actor=ACTOR,
        action=action,
        target=operation_id,
        tenant_id=where.get("tenant"),
        after={"filter": where},
    )


class _helping:  # noqa: N801 - used like a function
    """Carries out the operation in this process, unless a running one is quicker."""

    def __init__(self, database: Database, settings: Settings, operation_id: str) -> None:
        # Progress is on standard error, where log lines would go.
        # The other commands start faster without what only this needs.
        from delivery_service.bootstrap import (  # noqa: PLC0415
            configure_logging,
            operation_runner,
        )

        configure_logging(settings.model_copy(update={"log_level": "error"}))
        self._runner = operation_runner(settings, database, only=operation_id)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._runner.run())

    async def __aexit__(self, *_exception: object) -> None:
        assert self._task is not None  # noqa: S101 - set on entering
        self._runner.stop()
        with suppress(asyncio.CancelledError):
            await self._task


async def _watch(database: Database, row: dict[str, Any], *, is_quiet: bool) -> dict[str, Any]:
    """Show progress until the operation has ended; return it."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[counts]}"),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    is_hidden = is_quiet or not console.is_terminal
    with Progress(*columns, console=console, disable=is_hidden) as shown:
        task = shown.add_task(f"{row['kind']} {row['id']}", total=1.0, counts="")
        while row["ended_at"] is None:
            await asyncio.sleep(LOOK_EVERY)
            row = await database.read(_get, row["id"])
            counts = f"{row['done']:,} done, {row['matched'] - row['done']:,} passed over"
            share = bulk.progress(row)
            total = None if share is None else 1.0
            shown.update(task, completed=share or 0.0, total=total, counts=counts)
    return row


def _print(row: dict[str, Any], *, as_json: bool) -> None:
    shown = _shown(row)
    if as_json:
        print_json(shown)
        return
    if not shown["passed_over"]:
        del shown["passed_over"]
    print_fields(
        (name, _counts(value) if isinstance(value, dict) else value)
        for name, value in shown.items()
        if value is not None
    )


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    hidden = {"data", "first", "cursor", "lease_until", "lease_token", "fingerprint"}
    shown = {name: value for name, value in row.items() if name not in hidden}
    return shown if "status" not in row else {**shown, "progress": bulk.progress(row)}


def _counts(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _get(connection: Connection, operation_id: str) -> dict[str, Any]:
    found = operations.get(connection, operation_id)
    if found is None:
        raise CommandError(f"there is no operation {operation_id}")
    return found


def _filter(
    since: str,
    until: str | None,
    tenant: str | None,
    endpoint: str | None,
    event_type: str | None,
    status: StrEnum | None,
) -> Filter:
    where = Filter(
        since=_moment("since", since),
        until=None if until is None else _moment("until", until),
        tenant=tenant,
        endpoint=endpoint,
        event_type=event_type,
        status=None if status is None else str(status),
    )
    if where.until is not None and where.until <= where.since:
        raise CommandError("until must be later than since")
    return where


def _moment(option: str, text: str) -> datetime:
    try:
        return parse_timestamp(text)
    except SurehookError:
        pass
    try:
        delays: tuple[timedelta, ...] = RetrySchedule.parse(text).delays
    except SurehookError:
        delays = ()
    if len(delays) != 1:
        raise CommandError(
            f"{option}: {text!r} is neither one length of time, such as 2h or 30m, nor a time"
            " such as 2026-11-29T10:00:00Z"
        )
    return datetime.now(UTC) - delays[0]
