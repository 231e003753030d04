"""Operations on the secrets of endpoints."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import Connection

from delivery_service.api.audit import note
from delivery_service.api.auth import Editor, Reader
from delivery_service.api.context import Here, Row
from delivery_service.api.endpoint_rules import check_signable
from delivery_service.api.endpoints import PATH, EndpointId, fetch
from delivery_service.api.problems import conflict, responses
from delivery_service.api.routing import body_problems, router
from delivery_service.api.schemas.endpoints import (
    RotatedSecret,
    Rotation,
    SecretInfo,
    SecretList,
)
from delivery_service.api.signing import choose_secret, opened_secrets, public_half
from delivery_service.store import endpoints
from wire.secrets import HmacSecret, parse_secret

MAX_ACTIVE = 5
"""Secrets that sign at a time: each adds 48 to 96 bytes to every request."""

routes = router("endpoints")


@routes.get(f"{PATH}/secrets", responses=responses(404))
async def list_secrets(context: Here, caller: Reader, endpoint_id: EndpointId) -> SecretList:
    """List the secrets that sign now, without showing them."""

    def load(connection: Connection) -> list[Row]:
        fetch(connection, caller, endpoint_id)
        return endpoints.active_secrets(connection, [endpoint_id], context.now)[endpoint_id]

    items = []
    for row in await context.read(load):
        secret = parse_secret(context.sealer.open(row["ciphertext"]))
        items.append(
            SecretInfo(
                id=row["id"],
                kind="whsec" if isinstance(secret, HmacSecret) else "whsk",
                public_key=public_half(secret),
                created_at=row["created_at"],
                expires_at=row["expires_at"],
            )
        )
    return SecretList(items=items)


@routes.post(f"{PATH}/secrets/rotate", responses=body_problems(404, 409))
async def rotate_secret(
    context: Here, caller: Editor, endpoint_id: EndpointId, body: Rotation | None = None
) -> RotatedSecret:
    """Put a new secret in force, shown this once; older ones sign on for the overlap."""
    body = body or Rotation()
    secret = choose_secret(body)
    overlap = context.settings.secret_overlap
    if body.overlap_seconds is not None:
        overlap = timedelta(seconds=body.overlap_seconds)

    def rotate(connection: Connection) -> None:
        endpoints.lock_health(connection, [endpoint_id])
        row = fetch(connection, caller, endpoint_id)
        current = opened_secrets(connection, context, endpoint_id)
        if secret in current:
            raise conflict("secret-in-use", "This secret signs already; rotate to another one.")
        if overlap and len(current) >= MAX_ACTIVE:
            raise conflict(
                "too-many-secrets",
                f"{MAX_ACTIVE} secrets sign already; wait for one to expire, or end the older ones"
                " with an overlap of 0.",
            )
        check_signable(connection, context, row, [secret])
        sealed = context.sealer.seal(secret.reveal())
        endpoints.rotate_secret(connection, endpoint_id, sealed, overlap, context.now)
        tenant_id = row["tenant_id"]
        note(connection, context, caller, "secret.rotated", endpoint_id, tenant_id=tenant_id)

    await context.write(rotate)
    return RotatedSecret(
        secret=secret.reveal(),
        public_key=public_half(secret),
        overlap_seconds=int(overlap.total_seconds()),
    )
