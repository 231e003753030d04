"""From exceptions to outcomes, for attempts that got no answer."""

from __future__ import annotations

import asyncio
import os
import ssl

import aiohttp

from delivery_service.net.guard import BlockedUrl
from delivery_service.net.progress import Phase
from delivery_service.net.resolver import ResolutionError
from delivery_service.net.responses import one_line
from delivery_service.net.tls import TlsSettingsError
from delivery_service.policy.outcome import Outcome, OutcomeKind

_CERTIFICATE_HAS_EXPIRED = 10  # X509_V_ERR_CERT_HAS_EXPIRED
_BROKEN = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError)

Verdict = tuple[OutcomeKind, str]


def failed(exc: BaseException, phase: Phase, *, deadline: float, duration: float) -> Outcome:
    """Return the outcome of an attempt that ended in ``exc`` without an answer.

    ``deadline`` and ``duration`` are in seconds. The request may have arrived if the phase says
    that a connection was there to write to.
    """
    kind, error = _own(exc, phase, deadline) or _aiohttp(exc, phase) or _unknown(exc)
    return Outcome(kind, duration, error=one_line(error), may_have_arrived=phase is Phase.ANSWER)


def tls_reason(exc: ssl.SSLError) -> str:
    """Return the exact reason of a failed handshake or verification."""
    if isinstance(exc, ssl.SSLCertVerificationError):
        reason = exc.verify_message or str(exc)
        if exc.verify_code == _CERTIFICATE_HAS_EXPIRED:
            reason += " (the receiver's own certificate or one of the chain it sent)"
        return f"certificate verify failed: {reason}"
    return f"TLS failed: {exc.reason or exc}"


def connection_verdict(exc: OSError, phase: Phase) -> Verdict:
    """Return kind and reason of a connection that could not be opened or that broke."""
    reason = os.strerror(exc.errno) if exc.errno and exc.errno > 0 else str(exc)
    if phase is Phase.ANSWER:
        return OutcomeKind.PROTOCOL, f"the connection broke before an answer came: {reason}"
    if phase is Phase.HANDSHAKE and isinstance(exc, _BROKEN):
        return OutcomeKind.TLS, "TLS failed: the receiver closed the connection in the handshake"
    return OutcomeKind.CONNECT, f"can't connect: {reason or 'the connection was closed'}"


def _own(exc: BaseException, phase: Phase, deadline: float) -> Verdict | None:
    if isinstance(exc, BlockedUrl):
        return OutcomeKind.BLOCKED, str(exc)
    if isinstance(exc, ResolutionError):
        return OutcomeKind.DNS, str(exc)
    if isinstance(exc, TlsSettingsError):
        return OutcomeKind.TLS, str(exc)
    if isinstance(exc, aiohttp.ConnectionTimeoutError):
        return OutcomeKind.TIMEOUT, "no connection within connect_timeout"
    if isinstance(exc, TimeoutError) and not isinstance(exc, aiohttp.ClientOSError):
        return _timed_out(phase, deadline)
    return None


def _timed_out(phase: Phase, deadline: float) -> Verdict:
    error = f"the deadline of {deadline:g} s passed {phase}"
    if phase is Phase.RESOLVING:
        return OutcomeKind.DNS, error
    if phase is Phase.QUEUED:
        # Not the receiver's doing, so it must not count against its endpoint.
        return OutcomeKind.INTERNAL, f"{error}; raise max_connections"
    return OutcomeKind.TIMEOUT, error


def _aiohttp(exc: BaseException, phase: Phase) -> Verdict | None:
    if isinstance(exc, aiohttp.ClientHttpProxyError):
        return OutcomeKind.CONNECT, f"the egress proxy answered {exc.status}"
    if isinstance(exc, aiohttp.ClientProxyConnectionError):
        return OutcomeKind.CONNECT, "the egress proxy can't be reached"
    tls_error = _find_tls_error(exc)
    if tls_error is not None:
        return OutcomeKind.TLS, tls_reason(tls_error)
    if isinstance(exc, aiohttp.ClientConnectorDNSError):
        return OutcomeKind.DNS, f"the name does not resolve: {exc.os_error}"
    if isinstance(exc, aiohttp.ClientConnectorError):
        return connection_verdict(exc.os_error, phase)
    if isinstance(exc, aiohttp.ClientOSError):
        return connection_verdict(exc, phase)
    if isinstance(exc, aiohttp.ClientResponseError):
        return OutcomeKind.PROTOCOL, f"the answer is not valid HTTP: {exc.message}"
    if isinstance(exc, aiohttp.ServerDisconnectedError):
        return OutcomeKind.PROTOCOL, "the receiver closed the connection before it answered"
    if isinstance(exc, (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError)):
        return OutcomeKind.PROTOCOL, str(exc)
    return None


def _find_tls_error(exc: BaseException) -> ssl.SSLError | None:
    if isinstance(exc, aiohttp.ClientConnectorCertificateError):
        found: BaseException | None = exc.certificate_error
    elif isinstance(exc, aiohttp.ClientConnectorError):
        found = exc.os_error
    else:
        # An alert that comes after a TLS 1.3 handshake, such as "certificate required".
        found = exc.__cause__ if isinstance(exc, aiohttp.ClientOSError) else None
    return found if isinstance(found, ssl.SSLError) else None


def _unknown(exc: BaseException) -> Verdict:
    if isinstance(exc, asyncio.IncompleteReadError):
        return OutcomeKind.PROTOCOL, "the receiver closed the connection before it answered"
    return OutcomeKind.INTERNAL, f"{type(exc).__name__}: {exc}"
