"""Proof of ownership: the receiver must answer a signed challenge before anything is sent to it."""

from __future__ import annotations

import json
import secrets as random_text
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from delivery_service.api.audit import note
from delivery_service.api.auth import Caller, Editor
from delivery_service.api.context import Context, Here, Row
from delivery_service.api.endpoints import PATH, EndpointId, fetch, show
from delivery_service.api.problems import conflict, responses
from delivery_service.api.routing import router
from delivery_service.api.schemas.endpoints import Endpoint
from delivery_service.api.signing import opened_secrets
from delivery_service.net.authentication import Authenticator, Credentials
from delivery_service.net.tls import TlsSettings
from delivery_service.net.transport import PreparedRequest
from delivery_service.policy.outcome import Outcome
from delivery_service.store import endpoints, tenants, workers
from wire.envelope import encode_event
from wire.ids import DELIVERY, EVENT, new_id
from wire.profiles import PROFILES, build_headers
from wire.secrets import Secret
from wire.version import VERSION

CHALLENGE = "surehook.challenge"
"""The event type of a challenge."""

routes = router("endpoints")


@routes.post(f"{PATH}/verify", responses=responses(404, 409))
async def verify_endpoint(context: Here, caller: Editor, endpoint_id: EndpointId) -> Endpoint:
    """Let the receiver prove that it wants what is sent to this URL.

    A signed event of type `surehook.challenge` is sent once. The receiver must answer it with 2xx
    and `data.challenge`, as the whole body or as the member `challenge` of a JSON object. That
    enables an endpoint that was disabled as `unverified`.
    """
    row, secrets, profiles, at = await context.read(_load, context, caller, endpoint_id)
    challenge = random_text.token_urlsafe(32)
    outcome = await _challenge(context, row, secrets, profiles, at, challenge)
    if not outcome.delivered or not _echoes(outcome.response_body, challenge):
        raise conflict("ownership-unproven", _why(caller, outcome))
    return show(context, await context.write(_prove, context, caller, row))


def _load(
    connection: Connection, context: Context, caller: Caller, endpoint_id: str
) -> tuple[Row, list[Secret], list[str], datetime]:
    row = fetch(connection, caller, endpoint_id)
    tenant = tenants.get(connection, row["tenant_id"]) or {}
    profiles = row["profiles"] or tenant.get("profiles") or context.settings.profiles
    return (
        row,
        opened_secrets(connection, context, endpoint_id),
        list(profiles),
        workers.time(connection, context.now),
    )


async def _challenge(
    context: Context,
    row: Row,
    secrets: list[Secret],
    profiles: list[str],
    at: datetime,
    challenge: str,
) -> Outcome:
    """Send the challenge as any event is sent, but once, and of no delivery that is kept."""
    settings = context.settings
    event_id = new_id(EVENT, now=at)
    body = encode_event(event_id, CHALLENGE, at, {"challenge": challenge})
    user_agent = f"surehook/{VERSION}"
    signed = build_headers(
        [PROFILES[name] for name in profiles],
        secrets=secrets,
        delivery_id=new_id(DELIVERY, now=at),
        event_id=event_id,
        event_type=CHALLENGE,
        attempt=1,
        timestamp=int(at.timestamp()),
        body=body,
        user_agent=user_agent,
        prefix=settings.header_prefix,
    )
    headers = {**(context.sealer.open_json(row["headers"]) or {}), **signed}
    longest = settings.attempt_timeout.total_seconds()
    deadline = min(row["timeout"] or longest, longest)
    tls = context.sealer.open_json(row["tls"])
    credentials = context.sealer.open_json(row["authentication"])
    transport = context.transport()
    try:
        if credentials:
            value = await Authenticator(transport, context.clock.monotonic).header(
                row["id"], row["version"], Credentials(**credentials), deadline
            )
            if isinstance(value, Outcome):
                return value
            headers["authorization"] = value
        request = PreparedRequest(row["url"], headers, body, TlsSettings(**tls) if tls else None)
        return await transport.send(request, deadline)
    finally:
        await transport.close()


def _echoes(body: bytes, challenge: str) -> bool:
    """Whether an answer is the challenge alone. One that sends back all that it gets is none:
    such a receiver would prove anything."""
    try:
        text = body.decode().strip()
        if text == challenge:
            return True
        given: Any = json.loads(text)
    except (ValueError, RecursionError):
        return False
    if isinstance(given, Mapping):
        given = given.get("challenge")
    return isinstance(given, str) and given == challenge


def _why(caller: Caller, outcome: Outcome) -> str:
    if outcome.delivered:
        what = f"answered {outcome.status_code}, but not with the challenge"
    else:
        error = outcome.public_error if caller.is_tenant else outcome.error
        what = f"failed the challenge: {error or outcome.kind.value}"
    return (
        f"The receiver {what}. It must answer an event of type {CHALLENGE} with 2xx and"
        " data.challenge as the body."
    )


def _prove(connection: Connection, context: Context, caller: Caller, sent_to: Row) -> Row:
    endpoint_id = sent_to["id"]
    endpoints.lock_health(connection, [endpoint_id])
    row = fetch(connection, caller, endpoint_id)
    if row["url"] != sent_to["url"]:
        raise conflict("url-changed", "The URL was changed meanwhile; verify the new one.")
    endpoints.prove(connection, endpoint_id, context.now)
    if row["disabled_reason"] == endpoints.UNVERIFIED:
        endpoints.enable(connection, endpoint_id, context.now)
    after = fetch(connection, caller, endpoint_id)
    note(
        connection,
        context,
        caller,
        "endpoint.verified",
        endpoint_id,
        tenant_id=row["tenant_id"],
        before=show(context, row),
        after=show(context, after),
    )
    return after
