"""`surehook operations`: bulk operations that were started, and how far they are."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from sqlalchemy import Connection

from delivery_service.cli.auditing import note
from delivery_service.cli.failing import CommandError
from delivery_service.cli.opening import in_database
from delivery_service.cli.output import AsJson, Before, Limit, print_fields, print_json, print_rows
from delivery_service.settings import Settings
from delivery_service.store import bulk, operations
from delivery_service.store.database import Database

app = typer.Typer(
    help="Bulk operations: recover, replay, cancel and broadcast.", no_args_is_help=True
)

LISTED = (
    "id", "kind", "status", "matched", "done", "passed_over", "created_at", "ended_at", "filter",
)  # fmt: skip
LOOK_EVERY = 0.2
"""Seconds between two looks at the progress."""

Id = Annotated[str, typer.Argument(metavar="ID", help="op_…")]


@app.command("list")
def list_(
    kind: Annotated[bulk.Kind | None, typer.Option(help="Only of this kind.")] = None,
    status: Annotated[
        operations.Status | None, typer.Option(help="Only those in this state.")
    ] = None,
    limit: Limit = 50,
    before: Before = None,
    as_json: AsJson = False,
) -> None:
    """List operations, newest first."""
    rows = in_database(
        lambda database, _: database.read(
            operations.page, limit=limit, before=before, kind=kind, status=status
        )
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
        row = await database.read(get_operation, operation_id)
        return await watch(database, row, is_quiet=as_json) if wait else row

    print_operation(in_database(work), as_json=as_json)


@app.command()
def cancel(operation_id: Id) -> None:
    """Stop an operation. What it has done stays."""

    def work(connection: Connection) -> None:
        row = get_operation(connection, operation_id)
        if not operations.cancel(connection, operation_id):
            raise CommandError(f"{operation_id} is {row['status']}")
        note_operation(connection, "operation.cancelled", operation_id, row["filter"])

    in_database(lambda database, _: database.write(work))
    typer.echo(f"{operation_id} is cancelled.")


def note_operation(
    connection: Connection, action: str, operation_id: str, where: dict[str, Any]
) -> None:
    """Add an entry on an operation to the audit log."""
    note(
        connection,
        action,
        operation_id,
        tenant_id=where.get("tenant"),
        after={"filter": where},
    )


async def watch(database: Database, row: dict[str, Any], *, is_quiet: bool) -> dict[str, Any]:
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
            row = await database.read(get_operation, row["id"])
            counts = f"{row['done']:,} done, {row['matched'] - row['done']:,} passed over"
            share = bulk.progress(row)
            total = None if share is None else 1.0
            shown.update(task, completed=share or 0.0, total=total, counts=counts)
    return row


def print_operation(row: dict[str, Any], *, as_json: bool) -> None:
    """Print an operation, or the count of one."""
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


def get_operation(connection: Connection, operation_id: str) -> dict[str, Any]:
    """Return an operation's row, or raise `CommandError`."""
    found = operations.get(connection, operation_id)
    if found is None:
        raise CommandError(f"there is no operation {operation_id}")
    return found
