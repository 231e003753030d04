"""What became of an endpoint's attempts over time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import Query
from sqlalchemy import Connection

from delivery_service.api.auth import Reader
from delivery_service.api.context import Here
from delivery_service.api.endpoints import PATH, EndpointId, fetch
from delivery_service.api.problems import invalid, responses
from delivery_service.api.routing import router
from delivery_service.api.schemas.stats import EndpointStats, Per, StatsBucket, StatsRange
from delivery_service.policy.outcome import OutcomeKind
from delivery_service.store import attempts, workers
from delivery_service.store.attempts import Counted

STEPS = {"hour": timedelta(hours=1), "day": timedelta(days=1)}
MOST = {"hour": 7 * 24, "day": 92}
"""Buckets of one answer."""
USUAL = {"hour": 24, "day": 30}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

routes = router("endpoints")


@routes.get(f"{PATH}/stats", responses=responses(404))
async def read_endpoint_stats(
    context: Here, caller: Reader, endpoint_id: EndpointId, where: Annotated[StatsRange, Query()]
) -> EndpointStats:
    """Count an endpoint's attempts by outcome, for each hour or day."""

    def load(connection: Connection) -> EndpointStats:
        fetch(connection, caller, endpoint_id)
        starts = _starts(where, workers.time(connection, context.now))
        step = STEPS[where.per]
        counted = attempts.count(connection, endpoint_id, starts, step)
        buckets = [_bucket(start, counted.get(start, {})) for start in starts]
        return EndpointStats(
            per=where.per, since=starts[0], until=starts[-1] + step, buckets=buckets
        )

    return await context.read(load)


def _starts(where: StatsRange, now: datetime) -> list[datetime]:
    """Return the starts of the buckets, or raise the problem 422."""
    step = STEPS[where.per]
    try:
        until = -(-((where.until or now) - _EPOCH) // step)
        since = until - USUAL[where.per]
        if where.since is not None:
            since = (where.since - _EPOCH) // step
        if since >= until:
            raise invalid("#/since", "must be before until", "query")
        _check_length(where.per, until - since)
        ends = [_EPOCH + step * number for number in range(since, until + 1)]
    except OverflowError:
        raise invalid("#/until", "is out of range", "query") from None
    if ends[0] < _EPOCH:  # ids know no earlier time
        raise invalid("#/since", "is out of range", "query")
    return ends[:-1]


def _check_length(per: Per, length: int) -> None:
    if length > MOST[per]:
        raise invalid("#/since", f"at most {MOST[per]} {per}s before until", "query")


def _bucket(start: datetime, counted: dict[str, Counted]) -> StatsBucket:
    total = sum(each.attempts for each in counted.values())
    seconds = sum(each.seconds for each in counted.values())
    delivered = counted.get(OutcomeKind.DELIVERED.value)
    good = delivered.attempts if delivered else 0
    return StatsBucket(
        start=start,
        attempts=total,
        delivered=good,
        failed=total - good,
        kinds={kind: each.attempts for kind, each in sorted(counted.items())},
        mean_duration=seconds / total if total else None,
    )
