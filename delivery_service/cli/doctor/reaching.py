"""Whether a URL can be delivered to: guard, name, connection, TLS."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime, timedelta

from delivery_service.cli.doctor.findings import Finding, failure, ok, warning
from delivery_service.cli.doctor.flow import addresses_of
from delivery_service.net.guard import (
    BlockedUrl,
    CheckedUrl,
    GuardPolicy,
    check_address,
    check_url,
    display_url,
)
from delivery_service.net.tls import TlsSettings, TlsSettingsError, build_context

CONNECT_TIMEOUT = 5.0
SOON = timedelta(days=14)
"""A certificate that ends within this time is told."""

ADDRESSES = 8
"""Addresses of one name that are tried."""


async def check_reach(
    url: str, policy: GuardPolicy, tls: TlsSettings | None = None
) -> AsyncIterator[Finding]:
    """Look at everything on the way to a URL, without sending a request."""
    try:
        checked = check_url(url, policy)
    except BlockedUrl as error:
        yield failure("guard", f"refused, rule {error.rule}: {error}")
        return
    yield ok("guard", f"{display_url(checked.url)} is accepted")
    if checked.address is not None:
        addresses = [str(checked.address)]
    else:
        answer = await addresses_of(checked.host)
        if isinstance(answer, str):
            yield failure("DNS", answer)
            return
        addresses = answer
        yield ok("DNS", f"{checked.host} is {', '.join(addresses)}")
    refused = list(_refused(addresses, policy))
    for finding in refused:
        yield finding
    # Like the transport: one refused address is enough for the whole name.
    if refused:
        return
    context = await _context(checked, tls)
    if isinstance(context, Finding):
        yield context
        return
    for address in addresses[:ADDRESSES]:
        async for finding in _connect(checked, address, context):
            yield finding


def _refused(addresses: Iterable[str], policy: GuardPolicy) -> Iterable[Finding]:
    for address in addresses:
        try:
            check_address(address, policy)
        except BlockedUrl as error:
            yield failure("guard", f"refused, rule {error.rule}: {error}")


async def _context(checked: CheckedUrl, tls: TlsSettings | None) -> ssl.SSLContext | Finding | None:
    if checked.scheme != "https":
        return None
    try:
        return await asyncio.to_thread(build_context, tls)
    except TlsSettingsError as error:
        return failure("TLS", str(error))


async def _connect(
    checked: CheckedUrl, address: str, context: ssl.SSLContext | None
) -> AsyncIterator[Finding]:
    place = f"{address} port {checked.port}"
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as plain:
        plain.setblocking(False)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                await loop.sock_connect(plain, (address, checked.port))
        except TimeoutError:
            yield failure("TCP", f"{place} did not accept within {CONNECT_TIMEOUT:g} s")
            return
        except OSError as error:
            # asyncio puts a text of its own into strerror.
            reason = os.strerror(error.errno) if error.errno else str(error)
            yield failure("TCP", f"{place}: {reason}")
            return
        yield ok("TCP", f"{place} accepts connections")
        if context is not None:
            yield await _handshake(checked.host, place, plain, context)


async def _handshake(
    host: str, place: str, connected: socket.socket, context: ssl.SSLContext
) -> Finding:
    try:
        version, ends = await asyncio.to_thread(_shake_hands, host, connected, context)
    except TimeoutError:
        return failure("TLS", f"{place}: no handshake within {CONNECT_TIMEOUT:g} s")
    except ssl.SSLCertVerificationError as error:
        return failure("TLS", f"{place}: the certificate is not accepted: {error.verify_message}")
    except (ssl.SSLError, OSError) as error:
        return failure("TLS", f"{place}: {getattr(error, 'reason', None) or error}")
    end = datetime.fromtimestamp(ends, UTC)
    left = end - datetime.now(UTC)
    said = f"{place}: {version}, certificate valid until {end:%Y-%m-%d} ({left.days} days)"
    return warning("TLS", f"{said}: renew it") if left < SOON else ok("TLS", said)


def _shake_hands(
    host: str, connected: socket.socket, context: ssl.SSLContext
) -> tuple[str | None, float]:
    """Return the version of TLS and the end of the certificate, in Unix seconds."""
    connected.settimeout(CONNECT_TIMEOUT)
    with context.wrap_socket(connected, server_hostname=host) as secured:
        certificate = secured.getpeercert() or {}
        return secured.version(), ssl.cert_time_to_seconds(str(certificate["notAfter"]))
