"""Who calls, and what they may do: bearer API keys and their scopes."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer, SecurityScopes

from delivery_service.api.context import Context
from delivery_service.api.problems import Problem, not_found
from delivery_service.store import keys
from delivery_service.store.keys import Scope

MAX_KEY_LENGTH = 256
CALLER = "surehook.caller"
"""Key of the ASGI scope that holds the `Caller`."""

logger = logging.getLogger(__name__)
bearer = HTTPBearer(
    scheme_name="api_key",
    bearerFormat=f"{keys.PREFIX}…",
    description="An API key. The scopes of an operation are those that may call it.",
    auto_error=False,
)


@dataclass(frozen=True, slots=True)
class Caller:
    """The key that a request came with. ``tenant_id`` is set if it only sees one tenant."""

    key_id: str
    scope: Scope
    tenant_id: str | None = None

    @property
    def is_tenant(self) -> bool:
        """Whether the caller is a tenant and not the platform."""
        return self.tenant_id is not None

    def sees(self, tenant_id: str) -> bool:
        """Whether things of a tenant exist for this caller."""
        return self.tenant_id is None or self.tenant_id == tenant_id

    def restrict(self, tenant_id: str | None) -> str | None:
        """Return the tenant to select by: the caller's own, or else the given one.

        Raises the problem 404 when the given one is another tenant.
        """
        if tenant_id is not None and not self.sees(tenant_id):
            raise not_found("tenant")
        return tenant_id if self.tenant_id is None else self.tenant_id


async def authenticate(request: Request, context: Context) -> None:
    """Find the key of a request, before its body is read. Raises the problem 401."""
    key = _bearer_token(request.headers.get("authorization"))
    row = await context.read(keys.find, key, context.now)
    if row is None:
        raise _unauthenticated("The API key is unknown, expired or revoked.")
    if row["is_stale"]:
        await _touch(context, row)
    request.scope[CALLER] = Caller(row["id"], Scope(row["scope"]), row["tenant_id"])


async def _touch(context: Context, row: dict[str, Any]) -> None:
    try:
        await context.write(keys.touch, row["id"], context.now)
    except Problem:
        # Only a note for people; what was asked for may still succeed.
        logger.warning("last use of %s could not be noted", row["id"])


def _bearer_token(header: str | None) -> str:
    if header is None:
        raise _unauthenticated("Give an API key: `Authorization: Bearer shk_…`.")
    scheme, _, token = header.partition(" ")
    token = token.strip(" ")
    if scheme.lower() != "bearer" or not token.startswith(keys.PREFIX):
        raise _unauthenticated("The Authorization header must read `Bearer shk_…`.")
    if len(token) > MAX_KEY_LENGTH:
        raise _unauthenticated("The API key is unknown, expired or revoked.")
    return token


def _unauthenticated(detail: str) -> Problem:
    headers = {"www-authenticate": 'Bearer realm="surehook"'}
    return Problem(401, "unauthenticated", detail, headers=headers)


def _caller(
    request: Request, scopes: SecurityScopes, _documented: Annotated[Any, Depends(bearer)]
) -> Caller:
    caller: Caller = request.scope[CALLER]
    if caller.scope not in scopes.scopes:
        raise Problem(
            403,
            "forbidden",
            f"This needs a key of scope {' or '.join(scopes.scopes)}; this one's is"
            f" {caller.scope}.",
        )
    return caller


def _allowed(*scopes: Scope) -> Any:
    return Security(_caller, scopes=[scope.value for scope in scopes])


Admin = Annotated[Caller, _allowed(Scope.ADMIN)]
"""Parameter of operations for the platform's operators."""
Publisher = Annotated[Caller, _allowed(Scope.ADMIN, Scope.PUBLISH)]
"""Parameter of operations that publish."""
Reader = Annotated[Caller, _allowed(Scope.ADMIN, Scope.READ, Scope.TENANT)]
"""Parameter of operations that show what belongs to a tenant."""
PlatformReader = Annotated[Caller, _allowed(Scope.ADMIN, Scope.READ)]
"""Parameter of operations that show what belongs to the platform."""
Editor = Annotated[Caller, _allowed(Scope.ADMIN, Scope.TENANT)]
"""Parameter of operations that change what belongs to a tenant."""
