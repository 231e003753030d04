"""aiohttp's exceptions as kinds and reasons."""

from __future__ import annotations

import ssl

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from delivery_service.net.failures import (
    HUNG_UP,
    NO_CONNECTION,
    PROXY_UNREACHABLE,
    Verdict,
    connection_verdict,
    tls_reason,
)
from delivery_service.net.progress import Phase
from delivery_service.policy.outcome import OutcomeKind


def classify_aiohttp(exc: BaseException, phase: Phase) -> Verdict | None:
    """Return kind and reason of an exception of aiohttp, None for any other."""
    if isinstance(exc, aiohttp.ConnectionTimeoutError):
        return NO_CONNECTION
    if isinstance(exc, aiohttp.ClientHttpProxyError):
        return OutcomeKind.CONNECT, f"the egress proxy answered {exc.status}"
    if isinstance(exc, aiohttp.ClientProxyConnectionError):
        return PROXY_UNREACHABLE
    tls_error = _find_tls_error(exc)
    if tls_error is not None:
        return OutcomeKind.TLS, tls_reason(tls_error)
    if isinstance(exc, OSError) and not isinstance(exc, TimeoutError):
        cause = exc.os_error if isinstance(exc, aiohttp.ClientConnectorError) else exc
        return connection_verdict(cause, phase)
    if isinstance(exc, (HttpProcessingError, aiohttp.ClientResponseError)):
        return OutcomeKind.PROTOCOL, f"the answer is not valid HTTP: {exc.message}"
    if isinstance(exc, aiohttp.ServerDisconnectedError):
        return HUNG_UP
    if isinstance(exc, (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError)):
        return OutcomeKind.PROTOCOL, str(exc)
    return None


def _find_tls_error(exc: BaseException) -> ssl.SSLError | None:
    if isinstance(exc, aiohttp.ClientConnectorCertificateError):
        found: BaseException | None = exc.certificate_error
    elif isinstance(exc, aiohttp.ClientConnectorError):
        found = exc.os_error
    elif isinstance(exc, ssl.SSLError):
        found = exc
    else:
        # An alert that comes after a TLS 1.3 handshake, such as "certificate required".
        found = exc.__cause__ if isinstance(exc, aiohttp.ClientOSError) else None
    return found if isinstance(found, ssl.SSLError) else None
