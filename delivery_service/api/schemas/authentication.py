"""How requests authenticate to an endpoint's receiver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from delivery_service.api.schemas.common import Given, Shown, check_printable


def _no_colon(value: str) -> str:
    if ":" in value:
        raise ValueError("must have no colon (RFC 7617)")
    return value


Printable = AfterValidator(check_printable)
Password = Annotated[str, Field(min_length=1, max_length=512), Printable]
Part = Annotated[str, Field(min_length=1, max_length=512), Printable]


class BasicAuthentication(Given):
    """HTTP Basic (RFC 7617)."""

    type: Literal["basic"]
    username: Annotated[Part, AfterValidator(_no_colon)] = Field(examples=["surehook"])
    password: Password = Field(examples=["s3cret"])


class BearerAuthentication(Given):
    """A fixed bearer token (RFC 6750)."""

    type: Literal["bearer"]
    token: str = Field(
        min_length=1, max_length=3500, pattern=r"^[\x21-\x7e]+$", examples=["eyJhbGciOi"]
    )


class ClientCredentials(Given):
    """OAuth 2 client credentials (RFC 6749 §4.4). Tokens are kept until they expire."""

    type: Literal["oauth2"]
    token_url: str = Field(
        max_length=2048,
        description="Where tokens are had; the rules are those of an endpoint's URL.",
        examples=["https://login.acme.example/oauth2/token"],
    )
    client_id: Part = Field(examples=["surehook"])
    client_secret: Password = Field(examples=["s3cret"])
    scope: Part | None = Field(None, examples=["webhooks.write"])
    audience: Part | None = None
    credentials_in: Literal["header", "body"] = Field(
        "header", description="Where the client's id and secret are sent.", examples=["header"]
    )


Authentication = Annotated[
    BasicAuthentication | BearerAuthentication | ClientCredentials,
    Field(
        discriminator="type",
        description="How requests authenticate to the receiver: an Authorization header. What is"
        " secret in it is encrypted and never shown again.",
        examples=[{"type": "basic", "username": "surehook", "password": "s3cret"}],
    ),
]


class AuthenticationInfo(Shown):
    """How requests authenticate to the receiver, without what is secret."""

    type: Literal["basic", "bearer", "oauth2"]
    username: str | None
    token_url: str | None
    client_id: str | None
    scope: str | None
    audience: str | None


def authentication_info(opened: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return what may be shown of the credentials of an endpoint."""
    if not opened:
        return None
    return {name: opened.get(name) for name in AuthenticationInfo.model_fields}
