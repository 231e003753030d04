"""`surehook deliveries`: what became of deliveries, and sending them again."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Annotated, Any

import typer
from sqlalchemy import Connection

from delivery_service.cli.auditing import note
from delivery_service.cli.failing import CommandError
from delivery_service.cli.lengths import moment_of
from delivery_service.cli.narrowing import with_narrowing
from delivery_service.cli.opening import in_database
from delivery_service.cli.output import AsJson, Before, Limit, print_fields, print_json, print_rows
from delivery_service.cli.through_api import in_api, refused_like_the_api
from delivery_service.settings import Settings
from delivery_service.store import attempts, deliveries, endpoints, events
from delivery_service.store.database import Database
from delivery_service.store.narrowing import Narrow, Status
from delivery_service.store.waking import tell_workers

app = typer.Typer(help="Deliveries: one event to one endpoint.", no_args_is_help=True)

LISTED = (
    "id", "tenant_id", "event_type", "endpoint_id", "status", "attempts", "due_at", "reason",
)  # fmt: skip
ATTEMPT = ("number", "started_at", "duration", "kind", "status_code", "error")

Id = Annotated[str, typer.Argument(metavar="ID", help="dlv_…")]


@app.command("list")
@with_narrowing
def list_(
    *,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    endpoint: Annotated[str | None, typer.Option(help="Only to this endpoint (ep_…).")] = None,
    event: Annotated[str | None, typer.Option(help="Only of this event (evt_…).")] = None,
    type_: Annotated[str | None, typer.Option("--type", help="Only this event type.")] = None,
    status: Annotated[Status | None, typer.Option(help="Only those in this state.")] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Only those created since then: `2h` ago, or `2026-11-29T10:00:00Z`."),
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="Only those created before then, in the same forms.")
    ] = None,
    narrow: Narrow,
    limit: Limit = 50,
    before: Before = None,
    as_json: AsJson = False,
) -> None:
    """List deliveries, newest first."""
    where: dict[str, Any] = {
        "tenant_id": tenant,
        "endpoint_id": endpoint,
        "event_id": event,
        "event_type": type_,
        "status": status,
        "since": moment_of("since", since),
        "until": moment_of("until", until),
        "narrow": narrow,
    }

    def work(connection: Connection) -> tuple[list[dict[str, Any]], str]:
        rows = deliveries.page(connection, limit=limit, before=before, **where)
        return rows, "" if rows else _none(connection, event)

    rows, none = in_database(lambda database, _: database.read(work))
    shown = [_shown(row) for row in rows]
    if as_json:
        print_json(shown)
    else:
        print_rows(shown, LISTED, none=none)


def _none(connection: Connection, event_id: str | None) -> str:
    """Say why there is nothing: "did it get that event" must not end in a shrug."""
    if event_id is None:
        return "There are no such deliveries."
    event = events.get(connection, event_id)
    if event is None:
        return f"There is no event {event_id}: it was never committed, or retention removed it."
    if deliveries.page(connection, limit=1, event_id=event_id):
        return f"There are no such deliveries of {event_id}, but others."
    return (
        f"{event_id} ({event['type']} of tenant {event['tenant_id']}) has no deliveries: when it"
        " was published, the tenant had no endpoint for that event type."
    )


@app.command()
def show(delivery_id: Id, as_json: AsJson = False) -> None:
    """Show a delivery and its attempts."""

    def work(connection: Connection) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        return _get(connection, delivery_id), attempts.of_delivery(connection, delivery_id)

    delivery, made = in_database(lambda database, _: database.read(work))
    for attempt in made:
        for name in ("request_headers", "response_headers"):
            attempt[name] = json.loads(attempt[name] or "null")
    shown = _shown(delivery)
    if as_json:
        print_json({**shown, "log": made})
        return
    print_fields((name, value) for name, value in shown.items() if value is not None)
    print_rows(made, ATTEMPT, none="No attempt has been recorded yet.")


@app.command()
def redeliver(delivery_ids: Annotated[list[str], typer.Argument(metavar="ID…")]) -> None:
    """Send deliveries again: same id, fresh schedule. A pending one is made due at once.

    Either all of them or, if that can't be, none.
    """

    async def work(database: Database, settings: Settings) -> None:
        await database.write(_redeliver, delivery_ids, settings.replay_window)
        await tell_workers(database, settings)

    in_database(work)
    for delivery_id in delivery_ids:
        typer.echo(f"{delivery_id} is due now.")


@app.command()
def send_as_new(delivery_id: Id, as_json: AsJson = False) -> None:
    """Send a delivery's event to its endpoint under a new id: a receiver acts on it once more."""
    from delivery_service.api.deliveries import send_as_new  # noqa: PLC0415 - brings FastAPI

    new = in_api(lambda context, caller: send_as_new(context, caller, delivery_id), delivery_id)
    if as_json:
        print_json({"id": new.id, "copy_of": new.copy_of})
    else:
        typer.echo(f"{new.id} is due now, a copy of {delivery_id}.")


@app.command()
def cancel(delivery_ids: Annotated[list[str], typer.Argument(metavar="ID…")]) -> None:
    """Cancel pending deliveries: no attempt starts any more; one in flight is let finish.

    Either all of them or, if one is not pending, none. `redeliver` takes it back.
    """
    in_database(lambda database, _: database.write(_cancel, delivery_ids))
    for delivery_id in delivery_ids:
        typer.echo(f"{delivery_id} is cancelled.")


def _cancel(connection: Connection, delivery_ids: list[str]) -> None:
    for delivery_id in dict.fromkeys(delivery_ids):
        delivery = _get(connection, delivery_id)
        if not deliveries.cancel(connection, delivery_id):
            raise CommandError(f"{delivery_id} is not pending: it is {delivery['status']} already")
        _note(connection, "delivery.cancelled", delivery, "cancelled")


def _note(connection: Connection, action: str, delivery: dict[str, Any], status_after: str) -> None:
    note(
        connection,
        action,
        delivery["id"],
        tenant_id=delivery["tenant_id"],
        before={"status": delivery["status"], "reason": delivery["reason"]},
        after={"status": status_after},
    )


def _redeliver(connection: Connection, delivery_ids: list[str], window: timedelta) -> None:
    from delivery_service.api.deliveries import send_again  # noqa: PLC0415 - brings FastAPI

    found = [_get(connection, delivery_id) for delivery_id in dict.fromkeys(delivery_ids)]
    # All endpoints come before the first row of the queue, as everywhere, so nobody deadlocks.
    endpoints.lock_health(connection, list({delivery["endpoint_id"] for delivery in found}))
    for delivery in found:
        with refused_like_the_api(delivery["id"]):
            send_again(connection, delivery, window)
        _note(connection, "delivery.redelivered", delivery, "pending")


def _get(connection: Connection, delivery_id: str) -> dict[str, Any]:
    found = deliveries.get(connection, delivery_id)
    if found is None:
        raise CommandError(f"there is no delivery {delivery_id}")
    return found


def _shown(delivery: dict[str, Any]) -> dict[str, Any]:
    hidden = {"undelivered", "attempts_before", "lease_token"}
    shown = {name: value for name, value in delivery.items() if name not in hidden}
    return {**shown, "in_flight": delivery["lease_token"] is not None}
