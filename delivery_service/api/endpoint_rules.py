"""What an endpoint's settings must fit: the guard, the platform's limits, and each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from delivery_service.api.auth import Caller
from delivery_service.api.context import Context
from delivery_service.api.problems import conflict, invalid
from delivery_service.api.schemas.authentication import Authentication, ClientCredentials
from delivery_service.api.schemas.endpoints import Tls
from delivery_service.api.signing import opened_secrets
from delivery_service.net.guard import BlockedUrl, check_url
from delivery_service.net.rules import guard_policy
from delivery_service.net.tls import TlsSettings, TlsSettingsError, build_context
from delivery_service.settings import Settings
from delivery_service.store import endpoints, tenants
from wire.custom_headers import check_custom_headers
from wire.errors import HeaderError
from wire.profiles import PROFILES, SignatureScheme
from wire.secrets import HmacSecret, Secret


def check_url_for(context: Context, caller: Caller, url: str, at: str = "#/url") -> str:
    """Return the URL as it is stored, or raise the problem 422.

    An operator reads which rule refused it and which setting would permit it; a tenant only what
    does not describe the platform's network.
    """
    try:
        return check_url(url, guard_policy(context.settings)).url
    except BlockedUrl as error:
        reason = error.public_reason if caller.is_tenant else str(error)
        raise invalid(at, reason) from None


def check_timeout(context: Context, seconds: float) -> None:
    """Raise the problem 422 for a longer time-out than the platform's."""
    longest = context.settings.attempt_timeout.total_seconds()
    if seconds > longest:
        raise invalid("#/timeout", f"at most {longest:g} s (the setting attempt_timeout)")


def sealed_headers(context: Context, headers: Mapping[str, str] | None) -> bytes | None:
    """Return custom headers encrypted, or raise the problem 422."""
    try:
        checked = check_custom_headers(headers or {}, prefix=context.settings.header_prefix)
    except HeaderError as error:
        raise invalid("#/headers", str(error)) from None
    return context.sealer.seal_json(checked)


def sealed_authentication(
    context: Context, caller: Caller, given: Authentication | None
) -> bytes | None:
    """Return how to authenticate to the receiver encrypted, or raise the problem 422."""
    if given is None:
        return None
    if isinstance(given, ClientCredentials):
        check_url_for(context, caller, given.token_url, "#/authentication/token_url")
    return context.sealer.seal_json(given.model_dump())


def sealed_tls(context: Context, given: Tls | None) -> bytes | None:
    """Return TLS material encrypted, or raise the problem 422."""
    if given is None:
        return None
    material = given.model_dump(exclude_none=True)
    try:
        build_context(TlsSettings(**material))
    except TlsSettingsError as error:
        raise invalid("#/tls", str(error)) from None
    return context.sealer.seal_json(material)


def check_one_authorization(context: Context, values: Mapping[str, Any]) -> None:
    """Raise the problem 422 if a custom header would say what `authentication` does."""
    if not values.get("authentication"):
        return
    headers = context.sealer.open_json(values.get("headers")) or {}
    if any(name.lower() == "authorization" for name in headers):
        raise invalid("#/headers", "Authorization is given by the member authentication already")


def check_proven(settings: Settings, row: Mapping[str, Any]) -> None:
    """Raise the problem 409 if an endpoint must prove its ownership before it is enabled."""
    if settings.require_ownership_proof and row["verified_at"] is None:
        raise conflict(
            "ownership-unproven",
            "The receiver must prove first that it wants what is sent to this URL; call verify.",
        )


def check_signable(
    connection: Connection,
    context: Context,
    values: Mapping[str, Any],
    secrets: Sequence[Secret],
) -> None:
    """Raise the problem 422 if the endpoint's profiles can't be signed with these secrets.

    Found out here, and not by the worker at every attempt.
    """
    tenant = tenants.get(connection, values["tenant_id"]) or {}
    names = values.get("profiles") or tenant.get("profiles") or context.settings.profiles
    needy = needs_hmac(names)
    if needy and not any(isinstance(secret, HmacSecret) for secret in secrets):
        raise invalid("#/profiles", f"{needy} signs with a whsec_ secret, and there is none")


def check_tenant_signable(connection: Connection, context: Context, tenant_id: str) -> None:
    """Raise the problem 409 if an endpoint could not be signed for under its tenant's profiles."""
    tenant = tenants.get(connection, tenant_id) or {}
    needy = needs_hmac(tenant.get("profiles") or ())
    if not needy:
        return
    for endpoint_id in endpoints.without_profiles(connection, tenant_id):
        secrets = opened_secrets(connection, context, endpoint_id)
        if not any(isinstance(secret, HmacSecret) for secret in secrets):
            raise conflict(
                "no-secret-for-profile",
                f"{needy} signs with a whsec_ secret, and {endpoint_id} has none; rotate its"
                " secret or give it profiles of its own first.",
            )


def needs_hmac(profiles: Iterable[str]) -> str | None:
    """Return the first of the profiles that only a ``whsec_`` secret can sign, if any."""
    return next(
        (name for name in profiles if PROFILES[name].scheme is SignatureScheme.SHA256_HEX), None
    )
