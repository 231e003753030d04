"""Who calls, and what they may do: bearer API keys and their scopes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer, SecurityScopes

from delivery_service.api.callers import Caller
from delivery_service.api.context import Context
from delivery_service.api.problems import Problem
from delivery_service.api.rate_limits import count_request
from delivery_service.store import keys
from delivery_service.store.keys import Scope

MAX_KEY_LENGTH = 256
CALLER = "surehook.caller"
"""Key of the ASGI scope that holds the `Caller`."""

bearer = HTTPBearer(
    scheme_name="api_key",
    bearerFormat=f"{keys.PREFIX}…",
    description="An API key. The scopes of an operation are those that may call it.",
    auto_error=False,
)


async def authenticate(request: Request, context: Context) -> Caller:
    """Find the key of a request, before its body is read. Raises the problem 401, and 429 when
    the key has used up its rate limit."""
    key = _bearer_token(request.headers.get("authorization"))
    caller = await context.known_keys.find(context, key)
    if caller is None:
        raise _unauthenticated("The API key is unknown, expired or revoked.")
    request.scope[CALLER] = caller
    if caller.rate_limit is not None:
        await count_request(request, context, caller.key_id, caller.rate_limit)
    return caller


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
    check_scope(caller, scopes.scopes)
    return caller


def check_scope(caller: Caller, scopes: Collection[str]) -> None:
    """Raise the problem 403 unless the caller's scope is one of ``scopes``."""
    if caller.scope not in scopes:
        raise Problem(
            403,
            "forbidden",
            f"This needs a key of scope {' or '.join(scopes)}; this one's is {caller.scope}.",
        )


def _allowed(*scopes: Scope) -> Any:
    return Security(_caller, scopes=[scope.value for scope in scopes])


PUBLISHERS = (Scope.ADMIN, Scope.PUBLISH)

Admin = Annotated[Caller, _allowed(Scope.ADMIN)]
"""Parameter of operations for the platform's operators."""
Publisher = Annotated[Caller, _allowed(*PUBLISHERS)]
"""Parameter of operations that publish."""
Reader = Annotated[Caller, _allowed(Scope.ADMIN, Scope.READ, Scope.TENANT)]
"""Parameter of operations that show what belongs to a tenant."""
PlatformReader = Annotated[Caller, _allowed(Scope.ADMIN, Scope.READ)]
"""Parameter of operations that show what belongs to the platform."""
Editor = Annotated[Caller, _allowed(Scope.ADMIN, Scope.TENANT)]
"""Parameter of operations that change what belongs to a tenant."""

__all__ = [
    "CALLER",
    "PUBLISHERS",
    "Admin",
    "Caller",
    "Editor",
    "PlatformReader",
    "Publisher",
    "Reader",
    "authenticate",
    "check_scope",
]
