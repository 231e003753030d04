"""`surehook endpoint`: register endpoints and look at them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from delivery_service.cli.opening import in_database
from delivery_service.cli.output import AsJson, Before, Limit, print_fields, print_json, print_rows
from delivery_service.cli.through_api import in_api
from delivery_service.store import endpoints
from sender.tables import SEALED
from sender.tables import endpoints as endpoints_table

if TYPE_CHECKING:
    from delivery_service.api.callers import Caller
    from delivery_service.api.context import Context

app = typer.Typer(help="Endpoints: where events are sent.", no_args_is_help=True)

SHOWN = ("id", "tenant_id", "url", "event_types", "status", "circuit", "failures", "created_at")
CREATED = (
    "url", "description", "event_types", "schedule", "profiles", "status", "disabled_reason",
    "secret", "public_key",
)  # fmt: skip
KEPT_BACK = {"version", *(c.name for c in endpoints_table.c if c.info.get(SEALED))}


class Status(StrEnum):
    """Whether an endpoint is sent to."""

    ENABLED = "enabled"
    DISABLED = "disabled"


@app.command()
def add(
    tenant: Annotated[str, typer.Option(help="The tenant whose endpoint it is.")],
    url: Annotated[str, typer.Option(help="Where its events are sent.")],
    types: Annotated[
        list[str] | None,
        typer.Option(
            "--type", help="Event type to send, `*` or a prefix such as `invoice.*`; repeatable."
        ),
    ] = None,
    description: Annotated[str, typer.Option(help="For people.")] = "",
    secret: Annotated[
        str | None,
        typer.Option(envvar="SUREHOOK_ENDPOINT_SECRET", help="Its secret. Default: a new one."),
    ] = None,
    schedule: Annotated[
        str | None, typer.Option(help="Its own retry schedule, such as `fast` or `1m,5m,30m`.")
    ] = None,
    profiles: Annotated[
        list[str] | None, typer.Option("--profile", help="Its own header profile; repeatable.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Register an endpoint, and show its secret, once.

    With the setting `require_ownership_proof` it begins disabled, until `endpoint verify`.
    """
    from delivery_service.api.endpoints import create_endpoint  # noqa: PLC0415 - brings FastAPI
    from delivery_service.api.schemas.endpoints import (  # noqa: PLC0415 - brings FastAPI
        CreatedEndpoint,
        NewEndpoint,
    )

    members = {
        "tenant": tenant,
        "url": url,
        "event_types": types or None,
        "description": description,
        "secret": secret,
        "schedule": schedule,
        "profiles": profiles or None,
    }
    given = {name: value for name, value in members.items() if value is not None}

    async def create(context: Context, caller: Caller) -> CreatedEndpoint:
        return await create_endpoint(context, caller, NewEndpoint.model_validate(given))

    created = in_api(create)
    shown = {"id": created.id, "tenant_id": created.tenant}
    shown |= {name: getattr(created, name) for name in CREATED}
    if as_json:
        print_json(shown)
        return
    print_fields((name, value) for name, value in shown.items() if value not in (None, "", []))
    typer.echo("Keep the secret for the receiver: it is not shown again.", err=True)
    if created.status != endpoints.ENABLED:
        typer.echo(
            f"Nothing is sent to it before `surehook endpoint verify {created.id}`.", err=True
        )


@app.command("list")
def list_(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    status: Annotated[Status | None, typer.Option(help="Only those with this status.")] = None,
    uid: Annotated[
        str | None, typer.Option(help="Only the one that the platform knows by this id.")
    ] = None,
    limit: Limit = 50,
    before: Before = None,
    as_json: AsJson = False,
) -> None:
    """List endpoints, newest first."""
    rows = in_database(
        lambda database, _: database.read(
            endpoints.page, limit=limit, before=before, tenant_id=tenant, status=status, uid=uid
        )
    )
    if as_json:
        print_json([shown_endpoint(row) for row in rows])
    else:
        print_rows(rows, SHOWN, none="There are no endpoints; `surehook endpoint add` makes one.")


def shown_endpoint(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is shown of an endpoint's row: all but what is sealed."""
    return {name: row[name] for name in row if name not in KEPT_BACK}
