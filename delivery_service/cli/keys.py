"""`surehook keys`: API keys, and the key that encrypts secrets at rest."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer
from sqlalchemy import Connection

from delivery_service.cli.auditing import note
from delivery_service.cli.failing import CommandError
from delivery_service.cli.opening import in_database
from delivery_service.cli.output import AsJson, Before, Limit, print_fields, print_json, print_rows
from delivery_service.sealing import generate_encryption_key
from delivery_service.store import keys

app = typer.Typer(help="API keys, and the key that encrypts secrets.", no_args_is_help=True)

SHOWN = ("id", "name", "scope", "tenant_id", "hint", "created_at", "expires_at", "revoked_at")


@app.command()
def create(
    name: Annotated[str, typer.Option(help="What the key is for.")] = "cli",
    scope: Annotated[keys.Scope, typer.Option(help="What it may do.")] = keys.Scope.ADMIN,
    tenant: Annotated[
        str | None, typer.Option(help="The tenant of a key with scope `tenant`.")
    ] = None,
    days: Annotated[
        int | None, typer.Option(min=1, max=36500, help="Days until it expires. Default: never.")
    ] = None,
    rate_limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=keys.MAX_RATE_LIMIT,
            help="Requests in `key_rate_window`. Default: setting `key_rate_limit`.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make an API key. It is shown once, and only its digest is stored."""
    expires_at = None if days is None else datetime.now(UTC) + timedelta(days=days)

    def work(connection: Connection) -> keys.NewKey:
        new = keys.create(
            connection,
            name=name,
            scope=scope,
            tenant_id=tenant,
            expires_at=expires_at,
            rate_limit=rate_limit,
        )
        after = {"name": name, "scope": scope.value}
        note(connection, "key.created", new.id, tenant_id=tenant, after=after)
        return new

    new = in_database(lambda database, _: database.write(work))
    shown = {"id": new.id, "key": new.key, "scope": scope.value, "expires_at": expires_at}
    if as_json:
        print_json(shown)
    else:
        print_fields(shown.items())
        typer.echo("Keep the key: it can't be shown again.", err=True)


@app.command("list")
def list_(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    scope: Annotated[keys.Scope | None, typer.Option(help="Only those with this scope.")] = None,
    portal: Annotated[
        bool | None, typer.Option(help="Only portal tokens, or none of them.")
    ] = None,
    limit: Limit = 50,
    before: Before = None,
    as_json: AsJson = False,
) -> None:
    """List API keys, newest first, revoked ones too."""
    equal = {"tenant_id": tenant, "scope": scope}
    rows = in_database(
        lambda database, _: database.read(
            keys.page, limit=limit, before=before, equal=equal, portal=portal
        )
    )
    shown = [
        {name: row[name] for name in (*SHOWN, "last_used_at", "rate_limit", "portal")}
        for row in rows
    ]
    if as_json:
        print_json(shown)
    else:
        print_rows(shown, SHOWN, none="There are no API keys; `surehook keys create` makes one.")


@app.command()
def revoke(key_id: Annotated[str, typer.Argument(metavar="ID", help="key_…")]) -> None:
    """Revoke an API key or portal token for good; the API refuses it within 2 seconds."""

    def work(connection: Connection) -> bool:
        row = keys.get(connection, key_id)
        if row is None or not keys.revoke(connection, key_id):
            return False
        note(connection, "key.revoked", key_id, tenant_id=row["tenant_id"])
        return True

    if not in_database(lambda database, _: database.write(work)):
        raise CommandError(f"there is no API key {key_id} in force")
    typer.echo(f"{key_id} is revoked.")


@app.command()
def encryption() -> None:
    """Print a new key for SUREHOOK_ENCRYPTION_KEYS. Nothing is stored."""
    typer.echo(generate_encryption_key())


@app.command()
def portal(
    tenant: Annotated[str, typer.Argument(help="The tenant whose portal it opens.")],
    minutes: Annotated[int, typer.Option(min=1, max=1440, help="Minutes until it expires.")] = 60,
    as_json: AsJson = False,
) -> None:
    """Make a short-lived token for the portal of one tenant."""

    def work(connection: Connection) -> tuple[keys.NewKey, datetime]:
        new, expires_at = keys.create_portal_token(connection, tenant, timedelta(minutes=minutes))
        note(connection, "portal_token.created", new.id, tenant_id=tenant)
        return new, expires_at

    new, expires_at = in_database(lambda database, _: database.write(work))
    shown = {"id": new.id, "token": new.key, "tenant": tenant, "expires_at": expires_at}
    if as_json:
        print_json(shown)
    else:
        print_fields(shown.items())
