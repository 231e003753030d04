"""One claimed delivery, from gate to result: gate → prepare → send → decide.

Every stage hands on a value; whatever goes wrong becomes part of the result. Nothing here writes
to the database: the recorder does.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from delivery_service.clock import Clock
from delivery_service.net.authentication import Authenticator, Credentials
from delivery_service.net.responses import one_line
from delivery_service.net.transport import PreparedRequest, Transport
from delivery_service.policy.outcome import Outcome, OutcomeKind
from delivery_service.policy.retry import RetryRules, Step, asked_pause, next_step
from delivery_service.store.endpoints import ending_of
from delivery_service.store.queue import Claimed
from delivery_service.store.states import State
from delivery_service.worker.targets import Target, Targets
from wire.headers import redact_headers
from wire.ids import ATTEMPT, new_id
from wire.profiles import build_headers
from wire.schedule import RetrySchedule

_to_json = json.JSONEncoder(separators=(",", ":")).encode  # `dumps` makes one for each call

POISON_CLAIMS = 3
"""Claims without an attempt after which a delivery is taken to kill its workers."""

UNAUTHORISED = 401


@dataclass(frozen=True, slots=True)
class Ended:
    """The delivery ends without an attempt."""

    status: str
    reason: str


class Result(NamedTuple):
    """What became of a claim, ready to be recorded. ``attempt`` is its row, if one was made."""

    claimed: Claimed
    step: Step | Ended
    finished_at: datetime
    outcome: Outcome | None = None
    attempt: Mapping[str, Any] | None = None
    asked_pause: timedelta | None = None
    probe: bool = False
    was_pristine: bool = True


@dataclass(frozen=True, slots=True)
class LeaseTime:
    """The database's time, carried on by this machine's monotonic clock since the claim. So a
    worker whose wall clock is wrong signs, decides and records by the right time."""

    claimed_at: datetime
    mark: float
    clock: Clock

    def now(self) -> datetime:
        return self.at(self.clock.monotonic())

    def at(self, reading: float) -> datetime:
        """The time at which the monotonic clock read so many seconds."""
        return self.claimed_at + timedelta(seconds=reading - self.mark)


@dataclass(frozen=True, slots=True)
class Sending:
    """What all attempts of a worker have in common."""

    transport: Transport
    authenticator: Authenticator
    targets: Targets
    schedule: RetrySchedule
    rules: RetryRules
    header_prefix: str
    user_agent: str


def gate(claimed: Claimed, state: State | None) -> Ended | State:
    """Say how a delivery ends that must not be sent; its endpoint's state if it may be."""
    if state is None or state.deleted:
        return Ended("cancelled", "endpoint_deleted")
    if state.status != "enabled":
        return Ended(*ending_of(state.disabled_reason))
    if claimed.claims > POISON_CLAIMS:
        return Ended("dead", "poison")
    return state


async def make_attempt(
    sending: Sending,
    claimed: Claimed,
    time: LeaseTime,
    *,
    probe: bool = False,
    was_pristine: bool = True,
) -> Result:
    """Send a delivery once and decide what follows. Raises nothing: a fault of our own is a
    failed attempt, and so is one that was cancelled."""
    started = time.clock.monotonic()
    started_at = time.at(started)
    target: Target | None = None
    headers: Mapping[str, str] = {}
    try:
        target = sending.targets.get(claimed.endpoint_id)
        headers = _headers(sending, claimed, target, started_at)
        authorised: Mapping[str, str] | Outcome = headers
        if target.credentials is not None:
            authorised = await _authorised(sending, claimed, target, target.credentials, headers)
        if isinstance(authorised, Outcome):
            outcome = authorised
        else:
            headers = authorised
            left = target.timeout - (time.clock.monotonic() - started)
            request = PreparedRequest(target.url, headers, claimed.body, target.tls)
            outcome = await sending.transport.send(request, max(left, 0.001))
            if outcome.status_code == UNAUTHORISED:
                sending.authenticator.refused(claimed.endpoint_id)
    except asyncio.CancelledError:
        outcome = Outcome(
            OutcomeKind.TIMEOUT,
            duration=time.clock.monotonic() - started,
            error="the worker stopped: shutdown_grace was over",
            may_have_arrived=True,
        )
    except Exception as error:  # noqa: BLE001 - one delivery's fault must not stop the others
        outcome = Outcome(OutcomeKind.INTERNAL, error=one_line(f"{type(error).__name__}: {error}"))
    finished_at = time.now()
    step = next_step(
        claimed.attempts + 1 - claimed.attempts_before,
        outcome,
        sending.schedule if target is None else target.schedule,
        finished_at,
        sending.rules,
        random.random(),  # noqa: S311 - spreads retries, guards nothing
    )
    return Result(
        claimed=claimed,
        step=step,
        finished_at=finished_at,
        outcome=outcome,
        attempt=_attempt_row(claimed, outcome, started_at, target, headers),
        asked_pause=asked_pause(outcome, finished_at, sending.rules),
        probe=probe,
        was_pristine=was_pristine,
    )


async def _authorised(
    sending: Sending,
    claimed: Claimed,
    target: Target,
    credentials: Credentials,
    headers: Mapping[str, str],
) -> Mapping[str, str] | Outcome:
    """Add what the receiver knows us by; an outcome if that could not be had."""
    value = await sending.authenticator.header(
        claimed.endpoint_id, target.version, credentials, target.timeout
    )
    return value if isinstance(value, Outcome) else {**headers, "authorization": value}


def _headers(sending: Sending, claimed: Claimed, target: Target, at: datetime) -> Mapping[str, str]:
    headers = build_headers(
        target.profiles,
        secrets=target.secrets,
        delivery_id=claimed.delivery_id,
        event_id=claimed.event_id,
        event_type=claimed.event_type,
        attempt=claimed.attempts + 1,
        timestamp=int(at.timestamp()),
        body=claimed.body,
        content_type=claimed.content_type,
        user_agent=sending.user_agent,
        prefix=sending.header_prefix,
    )
    return {**target.headers, **headers} if target.headers else headers


def _attempt_row(
    claimed: Claimed,
    outcome: Outcome,
    started_at: datetime,
    target: Target | None,
    headers: Mapping[str, str],
) -> dict[str, Any]:
    hidden = target.headers if target is not None else ()
    return {
        # By the database's time, which retention goes by.
        "id": new_id(ATTEMPT, now=started_at),
        "delivery_id": claimed.delivery_id,
        "endpoint_id": claimed.endpoint_id,
        "number": claimed.attempts + 1,
        "late": False,
        "started_at": started_at,
        "duration": outcome.duration,
        "url": "" if target is None else target.url,
        "kind": outcome.kind.value,
        "status_code": outcome.status_code,
        "error": outcome.error,
        "may_have_arrived": outcome.may_have_arrived,
        "request_headers": _to_json(redact_headers(headers, hide=hidden)),
        "response_headers": _to_json(outcome.response_headers),
        "response_body": outcome.response_body,
        "response_truncated": outcome.response_truncated,
    }
