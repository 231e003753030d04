"""Where work is due: the lanes that a round of claims can choose from.

A lane is one endpoint's first attempts (0) or its retries and bulk work (1). What is looked at is
bounded, however much is due and however many endpoints there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import (
    Connection,
    Executable,
    Select,
    and_,
    bindparam,
    case,
    func,
    literal,
    literal_column,
    or_,
    select,
    tuple_,
)

from delivery_service.policy.sharing import Lane
from sender.tables import endpoints, queue
from sender.types import UtcDateTime, moment

PEEK = 200
"""Oldest due rows looked at first: if there are fewer, they are all there is to do."""

STEPS = 200
"""Endpoints that one scan passes at most, about 25 µs each."""

_ONE: Any = literal_column("1")
_HELD = -1


@dataclass(frozen=True, slots=True)
class Scan:
    """Lanes with due work, oldest or next in turn first. ``cursor`` is where to go on; ``caps``
    has the limits of requests in flight that endpoints have of their own. ``much``: there is more
    than a look at the oldest rows can tell."""

    lanes: tuple[Lane, ...]
    cursor: str
    caps: Mapping[str, int]
    much: bool


def scan(
    connection: Connection, cursor: str, now: datetime | None = None, *, much: bool = False
) -> Scan:
    """Find lanes that have due work and are not held back.

    Where little is due, a look at the oldest due rows finds it all. Where much is, they may all
    be one endpoint's; then the endpoints are also visited in turn from ``cursor``, by a loose
    scan of the index that takes one step for each endpoint, however many rows it has. ``much``:
    that was so a moment ago, so that the first look would only repeat what the visits find.
    """
    kind = (connection.dialect.name, now is not None)
    caps: dict[str, int] = {}
    lanes: list[Lane] = []
    if not much:
        oldest = connection.execute(_peek(*kind), {"now": now, "peek": PEEK}).all()
        lanes = _usable([(row.endpoint_id, row.room, (row.lane,)) for row in oldest], caps)
        if sum(row.rows for row in oldest) < PEEK:
            return Scan(tuple(lanes), cursor, caps, much=False)
    visited = connection.execute(
        _visit(*kind), {"now": now, "cursor": cursor, "steps": STEPS}
    ).all()
    due = [
        (row.endpoint_id, row.room, [lane for lane in (0, 1) if (row.first, row.again)[lane]])
        for row in visited
    ]
    in_turn = _usable(due, caps)
    if much and not in_turn:
        return scan(connection, cursor, now)
    end = visited[-1].endpoint_id if len(visited) == STEPS else ""
    return Scan(tuple(dict.fromkeys(in_turn + lanes)), end, caps, much=True)


def _usable(
    found: Iterable[tuple[str, int | None, Sequence[int]]], caps: dict[str, int]
) -> list[Lane]:
    """The lanes of endpoints that are not held back; notes in ``caps`` what room they have."""
    lanes = []
    for endpoint_id, room, its_lanes in found:
        if room == _HELD:
            continue
        if room:
            caps[endpoint_id] = room
        lanes += [(endpoint_id, lane) for lane in its_lanes]
    return lanes


def _now(manual: bool) -> Any:
    return moment(bindparam("now", type_=UtcDateTime()) if manual else None)


def _room(endpoint_id: Any, manual: bool) -> Any:
    """The limit of requests in flight that an endpoint has of its own, 0 if it has none, and
    `_HELD` while it is held back: paused by its circuit or receiver, or by its rate limit.

    Endpoints that are not enabled are not held: the worker ends their deliveries. A subquery of
    its own, because a join with many endpoints tempts the planner to read them all.
    """
    now = _now(manual)
    held = and_(
        endpoints.c.status == "enabled",
        endpoints.c.deleted_at.is_(None),
        or_(endpoints.c.paused_until > now, endpoints.c.rate_next_at > now),
    )
    room = case((held, _HELD), else_=func.coalesce(endpoints.c.max_in_flight, 0))
    return select(room).where(endpoints.c.id == endpoint_id).scalar_subquery().label("room")


@cache
def _peek(_dialect: str, manual: bool) -> Executable:
    oldest = (
        select(queue.c.endpoint_id, queue.c.lane, queue.c.due_at)
        .where(queue.c.due_at <= _now(manual))
        .order_by(queue.c.due_at)
        .limit(bindparam("peek"))
        .subquery("oldest")
    )
    lanes = (
        select(
            oldest.c.endpoint_id,
            oldest.c.lane,
            func.count().label("rows"),
            func.min(oldest.c.due_at).label("since"),
        )
        .group_by(oldest.c.endpoint_id, oldest.c.lane)
        .subquery("lanes")
    )
    return select(
        lanes.c.endpoint_id,
        lanes.c.lane,
        lanes.c.rows,
        _room(lanes.c.endpoint_id, manual),
    ).order_by(lanes.c.since)


def oldest_due(what: Any, of: Any, lane: Any, manual: bool) -> Select[Any]:
    """``what`` of the due rows of a lane of ``of.endpoint_id``, oldest first.

    A range over whole index entries, in their order, can only be read from the lane's index.
    Equality and ``ORDER BY due_at`` could be read from the other one as well, through the rows of
    all endpoints, and EXISTS or min() from the table; with statistics that are out of date, that
    is what PostgreSQL did (tests/store/test_plans.py).
    """
    entry = (queue.c.endpoint_id, queue.c.lane, queue.c.due_at)
    return (
        select(what)
        .where(
            tuple_(*entry[:2]) >= tuple_(of.c.endpoint_id, lane),
            tuple_(*entry) <= tuple_(of.c.endpoint_id, lane, _now(manual)),
        )
        .order_by(*entry)
    )


@cache
def _visit(_dialect: str, manual: bool) -> Executable:
    ring = (
        select(func.min(queue.c.endpoint_id).label("endpoint_id"), _ONE.label("step"))
        .where(queue.c.endpoint_id > bindparam("cursor"))
        .cte("ring", recursive=True)
    )
    following = (
        select(func.min(queue.c.endpoint_id))
        .where(queue.c.endpoint_id > ring.c.endpoint_id)
        .scalar_subquery()
    )
    ring = ring.union_all(
        select(following, ring.c.step + _ONE).where(
            ring.c.endpoint_id.is_not(None), ring.c.step < bindparam("steps")
        )
    )

    def due(lane: int) -> Any:
        one = oldest_due(_ONE, ring, literal(lane), manual).limit(_ONE).correlate(ring)
        return func.coalesce(one.scalar_subquery(), _ONE - _ONE) == _ONE

    return (
        select(
            ring.c.endpoint_id,
            due(0).label("first"),
            due(1).label("again"),
            _room(ring.c.endpoint_id, manual),
        )
        .where(ring.c.endpoint_id.is_not(None))
        .order_by(ring.c.step)
    )
