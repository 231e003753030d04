"""What `surehook status` tells: read from the database in one transaction."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection

from delivery_service.cli.lengths import spoken
from delivery_service.net.guard import display_url
from delivery_service.settings import Settings
from delivery_service.store import activity, backlog, endpoints, workers

MOST_COUNTED = 10_000
"""Rows counted at most: beyond that the age of the oldest says more than their number."""

WORST = 10
"""Endpoints shown among the worst."""


def overview(connection: Connection, settings: Settings, window: timedelta) -> dict[str, Any]:
    """Return the state of the service, ready for JSON. Ages are in seconds, rates per second."""
    pulse = workers.pulse(connection)
    now = pulse["now"]
    assert now is not None  # noqa: S101 - the database always knows the time
    due = backlog.due(connection, MOST_COUNTED)
    ahead = activity.ahead(connection, MOST_COUNTED)
    attempts, by_outcome = activity.attempted(connection, window, now)
    delivered = sum(each.count for each in by_outcome if each.kind == "delivered")
    circuits = {"closed": 0, "open": 0, **backlog.circuits(connection)}
    seen = [_worker(row, now, settings) for row in workers.all_seen(connection)]
    oldest = pulse["oldest_due"]
    found: dict[str, Any] = {
        "at": now,
        "oldest_due_age": None if oldest is None else max(0.0, (now - oldest).total_seconds()),
        "queue": {
            "due": due,
            "in_flight": ahead.in_flight,
            "scheduled": ahead.scheduled,
            "counted_up_to": MOST_COUNTED,
            "due_is_more": due >= MOST_COUNTED,
            "scheduled_is_more": ahead.more,
        },
        "rates": {
            "window_seconds": window.total_seconds(),
            "published": round(activity.published(connection, window, now).per_second, 3),
            "attempts": round(attempts.per_second, 3),
            "delivered_share": delivered / attempts.count if attempts.count else None,
        },
        "endpoints": {"enabled": 0, "disabled": 0, **endpoints.counts(connection)},
        "circuits": circuits,
        "worst_endpoints": _worst(connection, by_outcome),
        "workers": seen,
    }
    return {**found, "problems": problems(found, settings)}


def problems(found: Mapping[str, Any], settings: Settings) -> list[str]:
    """Say in sentences what is wrong; an empty list says that deliveries flow."""
    said = []
    age, seen = found["oldest_due_age"], found["workers"]
    if not seen:
        said.append("no worker was ever seen: start one with `surehook worker`")
    elif not any(worker["alive"] for worker in seen):
        last = spoken(min(worker["seen_age"] for worker in seen))
        said.append(f"no worker was seen for {last}: start one with `surehook worker`")
    if age is not None and age > settings.ready_due_age.total_seconds():
        said.append(f"the oldest due delivery has waited for {spoken(age)}")
    if found["circuits"]["open"]:
        said.append(f"endpoints that are down (circuit open): {found['circuits']['open']}")
    return said


def _worker(row: Mapping[str, Any], now: datetime, settings: Settings) -> dict[str, Any]:
    age = now - row["seen_at"]
    return {
        "id": row["id"],
        "host": row["host"],
        "pid": row["pid"],
        "started_at": row["started_at"],
        "seen_age": round(max(0.0, age.total_seconds()), 3),
        "alive": age <= settings.ready_worker_age,
    }


def _worst(
    connection: Connection, by_outcome: Iterable[activity.Attempted]
) -> list[dict[str, Any]]:
    """The endpoints that are down, have failed for longest, or failed most in the window."""
    failed: Counter[str] = Counter()
    made: Counter[str] = Counter()
    how: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for each in by_outcome:
        made[each.endpoint_id] += each.count
        if each.kind != "delivered":
            failed[each.endpoint_id] += each.count
            how[each.endpoint_id][_kind(each)] += each.count
    unwell = activity.unwell(connection, WORST)
    names = list(dict.fromkeys([*unwell, *(id_ for id_, _ in failed.most_common(WORST))]))
    rows = {row["id"]: row for row in endpoints.rows(connection, names)}
    waiting = activity.waiting(connection, names, MOST_COUNTED)
    worst = [
        _endpoint(rows[id_], made[id_], failed[id_], how[id_].most_common(1), waiting[id_])
        for id_ in names
        if id_ in rows and rows[id_]["deleted_at"] is None
    ]
    worst.sort(key=lambda row: (row["circuit"] != "open", -row["failed"], row["id"]))
    return worst[:WORST]


def _kind(each: activity.Attempted) -> str:
    return each.kind if each.status_code is None else f"{each.kind} {each.status_code}"


def _endpoint(
    row: Mapping[str, Any],
    made: int,
    failed: int,
    most: Sequence[tuple[str, int]],
    waiting: int,
) -> dict[str, Any]:
    return {
        "id": row["id"],
        "tenant_id": row["tenant_id"],
        "url": display_url(row["url"]),
        "status": row["status"],
        "circuit": row["circuit"],
        "paused_until": row["paused_until"],
        "failing_since": row["failing_since"],
        "attempts": made,
        "failed": failed,
        "mostly": most[0][0] if most else None,
        "waiting": waiting,
    }
