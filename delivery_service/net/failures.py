"""From exceptions to outcomes, for attempts that got no answer."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable

from delivery_service.net.guard import BlockedUrl
from delivery_service.net.progress import Phase
from delivery_service.net.resolver import ResolutionError
from delivery_service.net.responses import one_line
from delivery_service.net.tls import TlsSettingsError
from delivery_service.policy.outcome import Outcome, OutcomeKind

_CERTIFICATE_HAS_EXPIRED = 10  # X509_V_ERR_CERT_HAS_EXPIRED
_BROKEN = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError)

_NEVER_ARRIVED = {OutcomeKind.BLOCKED, OutcomeKind.DNS, OutcomeKind.CONNECT}

Verdict = tuple[OutcomeKind, str]

Classifier = Callable[[BaseException, Phase], Verdict | None]
"""Kind and reason of an HTTP library's own exceptions; None for others."""


def failed(
    exc: BaseException, phase: Phase, classify: Classifier, *, deadline: float, duration: float
) -> Outcome:
    """Return the outcome of an attempt that ended in ``exc`` without an answer.

    ``classify`` knows the HTTP library's exceptions. ``deadline`` and ``duration`` are in seconds.
    The request may have arrived if the phase says that a connection was there to write to.
    """
    kind, error = classify(exc, phase) or _own(exc, phase, deadline) or _unknown(exc)
    arrived = phase is Phase.ANSWER and kind not in _NEVER_ARRIVED
    return Outcome(kind, duration, error=one_line(error), may_have_arrived=arrived)


NO_CONNECTION: Verdict = (OutcomeKind.TIMEOUT, "no connection within connect_timeout")
HUNG_UP: Verdict = (
    OutcomeKind.PROTOCOL,
    "the receiver closed the connection before it answered",
)
PROXY_UNREACHABLE: Verdict = (OutcomeKind.CONNECT, "the egress proxy can't be reached")


def tls_reason(exc: ssl.SSLError) -> str:
    """Return the exact reason of a failed handshake or verification."""
    if isinstance(exc, ssl.SSLCertVerificationError):
        reason = exc.verify_message or str(exc)
        if exc.verify_code == _CERTIFICATE_HAS_EXPIRED:
            reason += " (the receiver's own certificate or one of the chain it sent)"
        return f"certificate verify failed: {reason}"
    return f"TLS failed: {getattr(exc, 'reason', None) or exc}"


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
    if isinstance(exc, TimeoutError):
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


def _unknown(exc: BaseException) -> Verdict:
    return OutcomeKind.INTERNAL, f"{type(exc).__name__}: {exc}"
