"""What a gate remembers about one message, and what that means for the next claim.

A *receipt* is the record a store keeps under one key. Its states::

    claimed ── complete ──> done       the work is finished; the answer is remembered
       │  └─── release ───> free       the handler failed; the next delivery may claim
       │            └─────> parked     it failed ``max_failures`` times; nobody may claim
       └─ lease lapses ───> claimable  by anyone, with a new token; counts as a failure

Times are whole milliseconds since the epoch, UTC, by the clock of the store (or an injected one).
A receipt is over when ``now >= expires_at`` and a lease when ``now >= leased_until``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

CLAIMED = "claimed"
DONE = "done"
FREE = "free"
PARKED = "parked"


@dataclass(frozen=True, slots=True)
class Claimed:
    """The message is yours until the lease ends. ``token`` proves it to every later change.

    ``attempts`` counts the claims of this message, this one included.
    """

    token: str
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class InProgress:
    """Somebody else holds the message. Answer 409 or 503, never 2xx.

    ``retry_after`` is the time until the lease ends, in seconds, above 0.
    """

    retry_after: float


@dataclass(frozen=True, slots=True)
class Done:
    """The message was handled to the end. ``response`` is what `complete` was given."""

    response: bytes | None = None


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The key is known with another body. ``fingerprint`` is that of the remembered one.

    ``done`` tells whether the remembered one was handled to the end.
    """

    fingerprint: str
    done: bool = False


@dataclass(frozen=True, slots=True)
class Parked:
    """The message failed too often and waits in the dead-letter list. Never answer 2xx."""

    failures: int
    error: str | None = None


ClaimResult = Claimed | InProgress | Done | Mismatch | Parked


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One parked message: its ``failures``, the last ``error``, and when it was parked (UTC)."""

    key: str
    failures: int
    error: str | None
    parked_at: datetime


@dataclass(slots=True)
class Receipt:
    """The record of one key."""

    state: str
    token: str
    fingerprint: str
    attempts: int
    leased_until: int
    expires_at: int
    response: bytes | None = None
    error: str | None = None


def verdict(
    receipt: Receipt, fingerprint: str, token: str, max_failures: int | None, now: int
) -> ClaimResult | None:
    """What `receipt` means for a claim with `token`; None when the claim may take it over.

    A lapsed lease whose attempts are used up gives `Parked`: the store then has to park it.
    """
    if receipt.state != PARKED and now >= receipt.expires_at:
        return None
    if fingerprint and receipt.fingerprint and fingerprint != receipt.fingerprint:
        return Mismatch(receipt.fingerprint, done=receipt.state == DONE)
    if receipt.state == DONE:
        return Done(receipt.response)
    if receipt.state == PARKED:
        return Parked(receipt.attempts, receipt.error)
    if receipt.state == CLAIMED and receipt.token == token:
        # The client library sent the command twice because the first answer got lost.
        return Claimed(token, receipt.attempts)
    if receipt.state == CLAIMED and now < receipt.leased_until:
        return InProgress((receipt.leased_until - now) / 1000)
    if max_failures is not None and receipt.attempts >= max_failures:
        return Parked(receipt.attempts, receipt.error)
    return None


def attempts_after(receipt: Receipt, now: int) -> int:
    """The number of the attempt that a takeover of `receipt` starts."""
    return 1 if now >= receipt.expires_at else receipt.attempts + 1
