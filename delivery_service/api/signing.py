"""Secrets of endpoints: chosen, opened, and shown once."""

from __future__ import annotations

from sqlalchemy import Connection

from delivery_service.api.context import Context
from delivery_service.api.problems import invalid
from delivery_service.api.schemas.endpoints import ChosenSecret
from delivery_service.store import endpoints
from wire.errors import SecretError
from wire.secrets import HmacSecret, Secret, SigningKey, generate_secret, parse_secret


def choose_secret(body: ChosenSecret) -> Secret:
    """Return the caller's own secret, or a new one; raise the problem 422 if it can't sign."""
    if body.secret is None:
        return parse_secret(generate_secret(body.secret_kind))
    try:
        secret = parse_secret(body.secret)
    except SecretError as error:
        raise invalid("#/secret", str(error)) from None
    if not isinstance(secret, HmacSecret | SigningKey):
        raise invalid("#/secret", "a whpk_ key is public and can't sign; give the whsk_ key")
    return secret


def opened_secrets(connection: Connection, context: Context, endpoint_id: str) -> list[Secret]:
    """Return the secrets that sign now, newest first."""
    rows = endpoints.active_secrets(connection, [endpoint_id], context.now)[endpoint_id]
    return [parse_secret(context.sealer.open(row["ciphertext"])) for row in rows]


def public_half(secret: Secret) -> str | None:
    """Return the ``whpk_`` text of a ``whsk_`` secret; None for a ``whsec_`` one."""
    return secret.verifying_key().reveal() if isinstance(secret, SigningKey) else None
