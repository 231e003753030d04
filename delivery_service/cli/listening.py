"""`surehook listen`: a local receiver that verifies and prints what it is sent.

It needs neither settings nor a database, so the receiver's developers can use it on their own
machines.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from delivery_service.cli.failing import CommandError
from delivery_service.cli.verifying import Verifying
from wire.errors import SecretError
from wire.profiles import DEFAULT_PREFIX, PROFILES
from wire.secrets import Secret, parse_secret


def listen(
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on, 0 for any.")
    ] = 9000,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            envvar="SUREHOOK_ENDPOINT_SECRET",
            help="The endpoint's secret (whsec_…, whsk_… or whpk_…); repeatable during a rotation.",
        ),
    ] = None,
    status: Annotated[
        int, typer.Option(min=200, max=599, help="Status to answer verified deliveries with.")
    ] = 204,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    profile: Annotated[
        str, typer.Option(help=f"Header profile to expect: {', '.join(PROFILES)}.")
    ] = "standard",
    prefix: Annotated[
        str, typer.Option(help="The sender's setting `header_prefix`.")
    ] = DEFAULT_PREFIX,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object a line for each request.")
    ] = False,
) -> None:
    """Receive deliveries on this machine: verify and print each one, until Ctrl+C.

    What does not verify is answered with 401. A repeat, told by its id, is printed as one. Without
    a secret nothing is verified, and this is said with each delivery.
    """
    if profile not in PROFILES:
        raise CommandError(f"profile: {profile!r} is none of {', '.join(PROFILES)}")
    verifying = Verifying(PROFILES[profile], prefix, [_secret(text) for text in secret or []])
    # aiohttp comes with it, which the other commands start faster without.
    from delivery_service.cli.listener import Listener, serve  # noqa: PLC0415

    asyncio.run(serve(Listener(verifying, status, as_json=as_json), host, port))


def _secret(text: str) -> Secret:
    try:
        return parse_secret(text.strip())
    except SecretError as error:
        raise SecretError(f"secret: {error}") from None
