"""What one group of results changes in the database, in one transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from delivery_service.policy.health import (
    EndpointHealth,
    HealthRules,
    Judgement,
    Signal,
    is_endpoint_level,
    judge,
)
from delivery_service.policy.retry import GONE, Dead, Delivered, Retry
from delivery_service.store import attempts, deliveries, endpoints, settle
from delivery_service.worker.attempt import Ended, Result
from delivery_service.worker.notices import Notice, exhausted, of_endpoint, publish_notices

SCHEDULE_USED_UP = Dead("schedule_used_up")

_TYPES = {Signal.OPENED: "endpoint.failing", Signal.RECOVERED: "endpoint.recovered"}


@dataclass(frozen=True, slots=True)
class Recorded:
    """``late`` are the ids of deliveries whose lease had passed to another worker. ``pristine``
    tells of each endpoint that was judged whether its health is now without a blemish."""

    late: frozenset[str]
    pristine: Mapping[str, bool]


def record(
    connection: Connection,
    results: Sequence[Result],
    rules: HealthRules,
    now: datetime | None,
    *,
    again: bool = False,
    unwell: Collection[str] = (),
) -> Recorded:
    """Record results. ``again``: an earlier try may have been committed unnoticed. ``unwell``:
    ids of endpoints of which a success must be noted, even if it was claimed before they were.

    Endpoints are locked before queue rows are touched, as everywhere.
    """
    if again:
        done = attempts.existing(connection, [r.attempt["id"] for r in results if r.attempt])
        results = [r for r in results if r.attempt is None or r.attempt["id"] not in done]
    judged = [r for r in results if _bears_on_health(r, unwell)]
    health = endpoints.lock_health(connection, sorted({r.claimed.endpoint_id for r in judged}))
    current = _settle(connection, results, now)
    rows = [
        {**r.attempt, "late": r.claimed.delivery_id not in current} for r in results if r.attempt
    ]
    attempts.insert(connection, rows)
    own = [r for r in results if r.claimed.delivery_id in current]
    deliveries.apply(connection, [_change(r) for r in own], now)
    notices = exhausted([r.claimed for r in own if r.step == SCHEDULE_USED_UP])
    pristine: dict[str, bool] = {}
    for endpoint_id, row in health.items():
        mine = [r for r in own if r.claimed.endpoint_id == endpoint_id and r.outcome is not None]
        after, noticed = _judge_endpoint(connection, row, mine, rules, now)
        pristine[endpoint_id] = after.pristine
        notices += noticed
    publish_notices(connection, notices, now)
    return Recorded(frozenset(r.claimed.delivery_id for r in results) - current, pristine)


def _bears_on_health(result: Result, unwell: Collection[str]) -> bool:
    outcome = result.outcome
    if outcome is None:
        return False
    return (
        not result.was_pristine
        or is_endpoint_level(outcome)
        or outcome.status_code == GONE
        or result.claimed.endpoint_id in unwell
    )


def _settle(connection: Connection, results: Sequence[Result], now: datetime | None) -> set[str]:
    """End or renew the leases; return the ids of deliveries whose lease was still its own."""
    ended = []
    retried = []
    for result in results:
        row: dict[str, Any] = {
            "delivery_id": result.claimed.delivery_id,
            "token": result.claimed.token,
        }
        if isinstance(result.step, Retry):
            retried.append({**row, "delay": result.step.delay.total_seconds()})
        else:
            ended.append(row)
    return settle.remove(connection, ended) | settle.reschedule(connection, retried, now)


def _change(result: Result) -> dict[str, Any]:
    match result.step:
        case Delivered():
            status, reason = "delivered", None
        case Retry():
            status, reason = deliveries.PENDING, None
        case Dead(reason):
            status = "dead"
        case Ended(status, reason):
            pass
    return {
        "id": result.claimed.delivery_id,
        "attempted": 0 if result.attempt is None else 1,
        "status": status,
        "reason": reason,
        "last_outcome": None if result.outcome is None else result.outcome.kind.value,
    }


def _judge_endpoint(
    connection: Connection,
    row: Mapping[str, Any],
    results: Sequence[Result],
    rules: HealthRules,
    now: datetime | None,
) -> tuple[EndpointHealth, list[Notice]]:
    """Apply outcomes to an endpoint's health, in the order in which they came in."""
    before = EndpointHealth.of(row)
    judgement = Judgement(before)
    signals: list[Signal] = []
    gone = False
    for result in results:
        assert result.outcome is not None  # noqa: S101 - `judged` has no others
        gone = gone or result.outcome.status_code == GONE
        judgement = judge(
            judgement.health,
            result.outcome,
            result.finished_at,
            rules,
            result.asked_pause,
            probe=result.probe,
        )
        signals += judgement.signals
    if judgement.health != before:
        endpoints.set_health(connection, row["id"], asdict(judgement.health))
    after = judgement.health
    # A success later in the group ends the failing that called for it.
    failing = Signal.DISABLE in signals and after.failing_since is not None
    reason = "gone" if gone else "failing" if failing else None
    if reason is not None and endpoints.disable(connection, row["id"], reason, now):
        return after, [of_endpoint("endpoint.disabled", row, after, reason)]
    return after, [
        of_endpoint(type_, row, after if type_ == "endpoint.failing" else before)
        for signal, type_ in _TYPES.items()
        if signal in signals
    ]
