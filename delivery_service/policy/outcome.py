"""What became of one attempt, as a value. `net` makes it, `policy` judges it, `store` keeps it."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class OutcomeKind(StrEnum):
    """How an attempt ended. Everything but ``DELIVERED`` is a failure."""

    DELIVERED = "delivered"
    """A 2xx answer."""
    STATUS = "status"
    """Any other status than 2xx and 3xx."""
    REDIRECT = "redirect"
    """A 3xx answer; redirects are never followed."""
    TIMEOUT = "timeout"
    """The attempt's total deadline passed."""
    DNS = "dns"
    """The host's name did not resolve, or not in time."""
    CONNECT = "connect"
    """No connection: refused, unreachable, reset before anything was sent."""
    TLS = "tls"
    """The TLS handshake failed; ``error`` has the exact reason."""
    PROTOCOL = "protocol"
    """The answer was not HTTP, or the connection broke after the request was (partly) sent."""
    BLOCKED = "blocked"
    """The SSRF guard refused the URL or an address it resolves to."""
    AUTHENTICATION = "authentication"
    """No token to authenticate to the receiver with; nothing was sent to it."""
    INTERNAL = "internal"
    """Our own code failed while handling this delivery."""


class Outcome(NamedTuple):
    """The result of one attempt.

    ``error`` is for operators and may name addresses; ``public_error`` is what a tenant may see.
    ``duration`` is in seconds. ``response_body`` holds the first raw bytes up to the cap.
    ``retry_after`` is the raw header, not yet believed. ``may_have_arrived`` is true when the
    request, or a part of it, was written to a connection: the receiver may have acted on it.
    """

    kind: OutcomeKind
    duration: float = 0.0
    status_code: int | None = None
    error: str | None = None
    response_headers: tuple[tuple[str, str], ...] = ()
    response_body: bytes = b""
    response_truncated: bool = False
    retry_after: str | None = None
    may_have_arrived: bool = False

    @property
    def delivered(self) -> bool:
        """Whether the receiver accepted the delivery."""
        return self.kind is OutcomeKind.DELIVERED

    @property
    def public_error(self) -> str | None:
        """``error`` without what a tenant must not learn about the platform's network."""
        if self.kind is OutcomeKind.BLOCKED:
            return "blocked"
        return self.error
