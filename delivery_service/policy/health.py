"""An endpoint's health: its circuit, and when failing becomes disabling.

Only endpoint-level failures count: those that say the endpoint as a whole is unwell. One payload
that is answered with 400 says nothing about the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from delivery_service.policy.outcome import Outcome, OutcomeKind

ENDPOINT_LEVEL = frozenset(
    {
        OutcomeKind.DNS,
        OutcomeKind.CONNECT,
        OutcomeKind.TLS,
        OutcomeKind.TIMEOUT,
        OutcomeKind.AUTHENTICATION,
    }
)
TOO_MANY_REQUESTS = 429
SERVER_ERRORS = range(500, 600)


class Circuit(StrEnum):
    """Whether deliveries flow (``closed``) or wait for a probe (``open``)."""

    CLOSED = "closed"
    OPEN = "open"


class Signal(StrEnum):
    """What a change of health calls for; the caller acts on it."""

    OPENED = "opened"
    RECOVERED = "recovered"
    DISABLE = "disable"


@dataclass(frozen=True, slots=True)
class HealthRules:
    """``open_after``: endpoint-level failures in a row. ``first_pause`` doubles with each failed
    probe up to ``longest_pause``. ``disable_after``: failing for so long without a success
    disables the endpoint; None never does."""

    open_after: int = 10
    first_pause: timedelta = timedelta(seconds=30)
    longest_pause: timedelta = timedelta(minutes=30)
    disable_after: timedelta | None = timedelta(days=5)


@dataclass(frozen=True, slots=True)
class EndpointHealth:
    """The part of an endpoint's row that outcomes change."""

    circuit: Circuit = Circuit.CLOSED
    failures: int = 0
    failing_since: datetime | None = None
    pauses: int = 0
    paused_until: datetime | None = None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> EndpointHealth:
        """The health in an endpoint's row, which names the circuit as text."""
        return cls(
            circuit=Circuit(row["circuit"]),
            failures=row["failures"],
            failing_since=row["failing_since"],
            pauses=row["pauses"],
            paused_until=row["paused_until"],
        )

    @property
    def pristine(self) -> bool:
        """Whether a success would change nothing."""
        return self.circuit is Circuit.CLOSED and not self.failures and self.failing_since is None


@dataclass(frozen=True, slots=True)
class Judgement:
    """The new health, and what it calls for."""

    health: EndpointHealth
    signals: tuple[Signal, ...] = ()


def is_endpoint_level(outcome: Outcome) -> bool:
    """Whether a failure says that the endpoint as a whole is unwell."""
    return outcome.kind in ENDPOINT_LEVEL or (
        outcome.status_code is not None
        and (outcome.status_code == TOO_MANY_REQUESTS or outcome.status_code in SERVER_ERRORS)
    )


def judge(
    health: EndpointHealth,
    outcome: Outcome,
    now: datetime,
    rules: HealthRules,
    asked_pause: timedelta | None = None,
    *,
    probe: bool = False,
) -> Judgement:
    """Return the endpoint's health after ``outcome``.

    ``probe`` tells whether the attempt was let through an open circuit to try it; others may
    still come in that started before it opened. ``asked_pause`` is what the receiver asked for
    with ``Retry-After``: it holds the whole endpoint back, circuit or not.
    """
    if outcome.delivered:
        if health.pristine:
            return Judgement(health)
        was_open = health.circuit is Circuit.OPEN
        well = EndpointHealth(paused_until=_rest_of_pause(health, now, probe))
        return Judgement(well, (Signal.RECOVERED,) if was_open else ())
    if not is_endpoint_level(outcome):
        # Any answer but those proves the endpoint alive, so a row of failures ends here; only a
        # success ends the time of failing.
        return Judgement(_alive(health, now, probe))
    judgement = _after_failure(health, now, rules, probe)
    if asked_pause is not None:
        until = now + asked_pause
        paused = judgement.health.paused_until
        judgement = replace(
            judgement,
            health=replace(
                judgement.health, paused_until=until if paused is None else max(paused, until)
            ),
        )
    return judgement


def _alive(health: EndpointHealth, now: datetime, probe: bool) -> EndpointHealth:
    if health.circuit is Circuit.CLOSED and not health.failures:
        return health
    return EndpointHealth(
        failing_since=health.failing_since, paused_until=_rest_of_pause(health, now, probe)
    )


def _rest_of_pause(health: EndpointHealth, now: datetime, probe: bool) -> datetime | None:
    """What is left of a pause after an answer: all of it, unless a probe came to end it. The
    answer to a request that started before the pause is no reason to send more."""
    paused = health.paused_until
    return None if probe or paused is None or paused <= now else paused


def _after_failure(
    health: EndpointHealth, now: datetime, rules: HealthRules, probe: bool
) -> Judgement:
    since = health.failing_since or now
    failed = replace(health, failures=health.failures + 1, failing_since=since)
    if rules.disable_after is not None and now - since >= rules.disable_after:
        return Judgement(failed, (Signal.DISABLE,))
    is_open = health.circuit is Circuit.OPEN
    if (is_open and not probe) or (not is_open and failed.failures < rules.open_after):
        return Judgement(failed)
    pause = min(rules.first_pause * 2 ** min(health.pauses, 20), rules.longest_pause)
    opened = replace(
        failed, circuit=Circuit.OPEN, pauses=health.pauses + 1, paused_until=now + pause
    )
    return Judgement(opened, () if is_open else (Signal.OPENED,))
