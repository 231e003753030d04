"""`surehook endpoint`: register endpoints and look at them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer
from sqlalchemy import Connection

from delivery_service.cli.auditing import note
from delivery_service.cli.opening import in_database
from delivery_service.cli.output import AsJson, Before, Limit, print_fields, print_json, print_rows
from delivery_service.net.guard import check_url
from delivery_service.net.rules import guard_policy
from delivery_service.sealing import sealer_for
from delivery_service.settings import Settings
from delivery_service.store import endpoints, tenants
from delivery_service.store.database import Database
from sender.matching import check_patterns
from sender.publish import check_tenant
from sender.tables import SEALED
from sender.tables import endpoints as endpoints_table
from wire.errors import ProfileError, SecretError
from wire.ids import DELIVERY, EVENT, new_id
from wire.profiles import PROFILES, HeaderProfile, build_headers, check_profiles
from wire.schedule import RetrySchedule
from wire.secrets import Secret, generate_secret, parse_secret

app = typer.Typer(help="Endpoints: where events are sent.", no_args_is_help=True)

SHOWN = ("id", "tenant_id", "url", "event_types", "status", "circuit", "failures", "created_at")
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
    """Register an endpoint, and show its secret, once."""
    chosen = chosen_secret(generate_secret() if secret is None else secret)
    values: dict[str, Any] = {
        "tenant_id": check_tenant(tenant),
        "description": description,
        "event_types": check_patterns(types or []) or None,
        "schedule": schedule and str(RetrySchedule.parse(schedule)),
        "profiles": _profiles(profiles),
    }

    async def work(database: Database, settings: Settings) -> str:
        values["url"] = check_url(url, guard_policy(settings)).url
        return await database.write(_create, values, chosen, settings)

    shown = {"id": in_database(work), **values, "secret": chosen.reveal()}
    if as_json:
        print_json(shown)
    else:
        print_fields((name, value) for name, value in shown.items() if value not in (None, ""))
        typer.echo("Keep the secret for the receiver: it is not shown again.", err=True)


def _create(
    connection: Connection, values: dict[str, Any], secret: Secret, settings: Settings
) -> str:
    tenants.ensure(connection, values["tenant_id"])
    check_signable(connection, values, secret, settings)
    sealed = sealer_for(settings).seal(secret.reveal())
    endpoint_id = endpoints.create(connection, values, sealed)
    after = {**values, "event_types": values["event_types"] or []}
    note(connection, "endpoint.created", endpoint_id, tenant_id=values["tenant_id"], after=after)
    return endpoint_id


def check_signable(
    connection: Connection, values: Mapping[str, Any], secret: Secret, settings: Settings
) -> None:
    """Sign once for nothing: better refused now than failing at every attempt."""
    tenant = tenants.get(connection, values["tenant_id"]) or {}
    profiles = values["profiles"] or tenant.get("profiles") or settings.profiles
    build_headers(
        [PROFILES[p] if isinstance(p, str) else HeaderProfile.from_dict(p) for p in profiles],
        secrets=[secret],
        delivery_id=new_id(DELIVERY),
        event_id=new_id(EVENT),
        event_type="trial",
        attempt=1,
        timestamp=0,
        body=b"",
        user_agent="surehook",
        prefix=settings.header_prefix,
    )


def chosen_secret(given: str) -> Secret:
    """Return the secret, if it is one that can sign; raise `SecretError` if not."""
    try:
        secret = parse_secret(given)
        secret.sign(b"")  # a public key could not
    except SecretError as error:
        raise SecretError(f"secret: {error}") from None
    return secret


def _profiles(names: list[str] | None) -> list[str] | None:
    if not names:
        return None
    unknown = [name for name in names if name not in PROFILES]
    if unknown:
        raise ProfileError(f"profile: {unknown[0]!r} is none of {', '.join(PROFILES)}")
    check_profiles([PROFILES[name] for name in names])
    return names


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
