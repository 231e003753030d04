"""`surehook endpoint show`, `enable`, `verify`, `disable`, `rotate` and `test`: care of one."""

from __future__ import annotations

import json
from math import ceil
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from sqlalchemy import Connection

from delivery_service.cli.auditing import note
from delivery_service.cli.endpoints import shown_endpoint
from delivery_service.cli.failing import CommandError
from delivery_service.cli.lengths import length_of
from delivery_service.cli.opening import in_database, in_service
from delivery_service.cli.output import AsJson, print_fields, print_json, print_rows
from delivery_service.cli.through_api import in_api, refused_like_the_api
from delivery_service.sealing import Sealer, sealer_for
from delivery_service.settings import Settings
from delivery_service.store import activity, deliveries, endpoints
from delivery_service.store.database import Database
from wire.errors import SurehookError
from wire.rawjson import RawJson

if TYPE_CHECKING:
    from delivery_service.api.callers import Caller
    from delivery_service.api.context import Context

Id = Annotated[str, typer.Argument(metavar="ID", help="ep_…")]

MOST_COUNTED = 10_000
RECENT = ("id", "event_type", "status", "attempts", "due_at", "reason")
PROVEN = ("id", "url", "status", "disabled_reason", "verified_at")


def show(endpoint_id: Id, as_json: AsJson = False) -> None:
    """Show an endpoint: its settings, circuit, secrets (without showing them), how much waits for
    it, and its newest deliveries."""

    async def work(database: Database, settings: Settings) -> dict[str, Any]:
        return await database.read(_shown, endpoint_id, sealer_for(settings))

    found = in_database(work)
    if as_json:
        print_json(found)
        return
    recent = found.pop("newest_deliveries")
    secrets = found.pop("secrets")
    print_fields((name, value) for name, value in found.items() if value not in (None, "", []))
    print_rows(secrets, ("id", "kind", "created_at", "expires_at"), none="It has no secret.")
    print_rows(recent, RECENT, none="Nothing was published for it yet.")


def _shown(connection: Connection, endpoint_id: str, sealer: Sealer) -> dict[str, Any]:
    row = _get(connection, endpoint_id)
    active = endpoints.active_secrets(connection, [endpoint_id])[endpoint_id]
    waiting = activity.waiting(connection, [endpoint_id], MOST_COUNTED)[endpoint_id]
    newest = deliveries.page(connection, limit=10, endpoint_id=endpoint_id)
    return {
        **shown_endpoint(row),
        "custom_headers": _names(sealer, row["headers"]),
        "own_tls": row["tls"] is not None,
        "waiting": waiting,
        "secrets": [
            {
                "id": secret["id"],
                "kind": _kind(sealer, secret["ciphertext"]),
                "created_at": secret["created_at"],
                "expires_at": secret["expires_at"],
            }
            for secret in active
        ],
        "newest_deliveries": [{name: each[name] for name in RECENT} for each in newest],
    }


def _names(sealer: Sealer, headers: bytes | None) -> list[str]:
    try:
        return sorted(sealer.open_json(headers) or {})
    except SurehookError:
        return ["(can't be decrypted)"]


def _kind(sealer: Sealer, ciphertext: bytes) -> str:
    try:
        return sealer.open(ciphertext).partition("_")[0]
    except SurehookError:
        return "can't be decrypted"


def enable(endpoint_id: Id) -> None:
    """Enable an endpoint and close its circuit. What was skipped meanwhile can be redelivered.

    With the setting `require_ownership_proof`, only after `endpoint verify`.
    """
    from delivery_service.api.endpoint_rules import check_proven  # noqa: PLC0415 - brings FastAPI

    def work(connection: Connection, settings: Settings) -> None:
        endpoints.lock_health(connection, [endpoint_id])
        before = _get(connection, endpoint_id)
        with refused_like_the_api(endpoint_id):
            check_proven(settings, before)
        endpoints.enable(connection, endpoint_id)
        _note(connection, "endpoint.enabled", before)

    in_database(lambda database, settings: database.write(work, settings))
    typer.echo(f"{endpoint_id} is enabled, its circuit is closed.")


def verify(endpoint_id: Id, as_json: AsJson = False) -> None:
    """Let the receiver prove that it wants what is sent to this URL, with one signed challenge.

    It must answer an event of type `surehook.challenge` with 2xx and `data.challenge` as the body.
    That enables an endpoint that was disabled as `unverified`.
    """
    from delivery_service.api.ownership import verify_endpoint  # noqa: PLC0415 - brings FastAPI

    proven = in_api(
        lambda context, caller: verify_endpoint(context, caller, endpoint_id), endpoint_id
    )
    shown = {name: getattr(proven, name) for name in PROVEN}
    if as_json:
        print_json(shown)
    else:
        print_fields((name, value) for name, value in shown.items() if value is not None)


def disable(endpoint_id: Id) -> None:
    """Disable an endpoint: no new attempt starts, and its pending deliveries become `skipped`."""

    def work(connection: Connection) -> bool:
        before = _get(connection, endpoint_id)
        disabled = endpoints.disable(connection, endpoint_id, "operator")
        if disabled:
            _note(connection, "endpoint.disabled", before)
        return disabled

    changed = in_database(lambda database, _: database.write(work))
    typer.echo(f"{endpoint_id} is disabled." if changed else f"{endpoint_id} was disabled already.")


def rotate(
    endpoint_id: Id,
    kind: Annotated[
        Literal["whsec", "whsk"], typer.Option(help="Kind of the new secret: HMAC or Ed25519.")
    ] = "whsec",
    secret: Annotated[
        str | None,
        typer.Option(envvar="SUREHOOK_ENDPOINT_SECRET", help="The new one. Default: generated."),
    ] = None,
    overlap: Annotated[
        str | None,
        typer.Option(
            help="How long older secrets sign on, such as `24h`; `0s` ends them at once."
            " Default: setting `secret_overlap`."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Give an endpoint a new secret, shown once; older ones sign on beside it for the overlap."""
    from delivery_service.api.schemas.endpoints import (  # noqa: PLC0415 - brings FastAPI
        RotatedSecret,
        Rotation,
    )
    from delivery_service.api.secrets import rotate_secret  # noqa: PLC0415 - brings FastAPI

    given: dict[str, Any] = {"secret": secret, "secret_kind": kind}
    if overlap is not None:
        given["overlap_seconds"] = ceil(length_of("overlap", overlap).total_seconds())

    async def work(context: Context, caller: Caller) -> RotatedSecret:
        body = Rotation.model_validate(given)
        return await rotate_secret(context, caller, endpoint_id, body)

    rotated = in_api(work, endpoint_id)
    shown = {"id": endpoint_id, **rotated.model_dump()}
    if as_json:
        print_json(shown)
    else:
        print_fields((name, value) for name, value in shown.items() if value is not None)
        typer.echo("Keep the secret for the receiver: it is not shown again.", err=True)


def send_test(
    endpoint_id: Id,
    data: Annotated[
        str, typer.Option(help="JSON that is sent as the event's data, exactly as given.")
    ] = "{}",
    as_json: AsJson = False,
) -> None:
    """Send an endpoint one signed request of type `surehook.test`, and show what came back.

    It goes through the guard and everything else that a delivery goes through, also where the
    endpoint is disabled or its circuit open; but it is stored nowhere, never repeated, and does
    not count for the endpoint's health. Exit status 1 when it was not accepted.
    """
    # It brings the worker along, which the other commands start faster without.
    from delivery_service.cli.trial import try_endpoint  # noqa: PLC0415

    content = RawJson(data)
    trial = in_service(lambda service: try_endpoint(service, endpoint_id, content))
    outcome = trial.outcome
    shown = {
        "endpoint_id": endpoint_id,
        "webhook_id": trial.delivery_id,
        "delivered": outcome.delivered,
        "kind": outcome.kind.value,
        "status_code": outcome.status_code,
        "error": outcome.error,
        "duration": outcome.duration,
        "request_headers": json.loads(trial.request_headers),
        "response_headers": [list(pair) for pair in outcome.response_headers],
        "response_body": outcome.response_body,
    }
    if as_json:
        print_json(shown)
    else:
        hidden = ("request_headers", "response_headers")
        print_fields(
            (name, value)
            for name, value in shown.items()
            if value not in (None, b"") and name not in hidden
        )
    if not outcome.delivered:
        raise typer.Exit(1)


def _get(connection: Connection, endpoint_id: str) -> dict[str, Any]:
    row = endpoints.get(connection, endpoint_id)
    if row is None:
        raise CommandError(f"there is no endpoint {endpoint_id}")
    return row


def _note(connection: Connection, action: str, before: dict[str, Any]) -> None:
    def state(row: dict[str, Any]) -> dict[str, Any]:
        return {name: row[name] for name in ("url", "status", "disabled_reason", "circuit")}

    after = _get(connection, before["id"])
    note(
        connection,
        action,
        before["id"],
        tenant_id=before["tenant_id"],
        before=state(before),
        after=state(after),
    )
