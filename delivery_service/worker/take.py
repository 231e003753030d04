"""Taking work: one transaction that finds, shares out, claims and counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection

from delivery_service.policy.limits import grant
from delivery_service.policy.sharing import allowance, share
from delivery_service.store import due, endpoints, queue, settle
from delivery_service.store.queue import Claimed
from delivery_service.store.states import State, states_of
from delivery_service.worker.attempt import POISON_CLAIMS
from delivery_service.worker.targets import Targets
from wire.ids import new_id

SUSPECT_PAUSE = timedelta(milliseconds=100)
"""How long a suspected killer waits when another is on trial already."""


@dataclass(frozen=True, slots=True)
class Places:
    """What a worker has room for: ``free`` of ``cap`` an endpoint, with ``in_flight`` by
    endpoint. ``trial_free``: no suspected killer is being tried just now."""

    free: int
    cap: int
    in_flight: Mapping[str, int]
    trial_free: bool


@dataclass(frozen=True, slots=True)
class Turn:
    """One of a worker's rounds: its ``number``, the endpoint that it starts after, and whether
    ``much`` was due in the one before."""

    number: int = 1
    cursor: str = ""
    much: bool = False

    def next(self, cursor: str, *, much: bool) -> Turn:
        """The turn that follows."""
        return Turn(self.number + 1, cursor, much)


@dataclass(frozen=True, slots=True)
class Taken:
    """Claimed work. ``probes`` are the ids of deliveries that try an open circuit. ``next`` is
    how the next round starts. ``found``: whether anything was due, claimed or not. ``suspects``:
    whether suspected killers were put off by `SUSPECT_PAUSE`."""

    work: Sequence[Claimed]
    states: Mapping[str, State]
    probes: frozenset[str]
    next: Turn
    found: bool
    suspects: bool = False


def take(
    connection: Connection,
    places: Places,
    targets: Targets,
    turn: Turn,
    lease: timedelta,
    now: datetime | None,
) -> Taken:
    """Claim what is due and fits. The caller commits, and only then sends."""
    found = due.scan(connection, turn.cursor, now, much=turn.much)
    if not found.lanes:
        return Taken((), {}, frozenset(), turn.next(found.cursor, much=False), found=False)
    allowances = {
        endpoint_id: allowance(
            places.in_flight.get(endpoint_id, 0),
            places.free,
            found.caps.get(endpoint_id, places.cap),
        )
        for endpoint_id, _ in found.lanes
    }
    most = min(places.free, queue.MOST)
    wants, stopped_at = share(found.lanes, most, allowances, turn.number)
    claimed = queue.claim(connection, wants, new_id("lease"), lease, now)
    following = turn.next(stopped_at or found.cursor, much=found.much and len(claimed) == most)
    if not claimed:
        return Taken((), {}, frozenset(), following, found=True)
    # Only now that the rows are held: an endpoint that was disabled or changed meanwhile would
    # otherwise get one more attempt.
    states = states_of(connection, list({row.endpoint_id for row in claimed}))
    counted = _Count(connection, states, lease, claimed[0].claimed_at)
    kept, back = counted.keep(claimed)
    kept, suspects = _on_trial(kept, places.trial_free)
    settle.give_back(connection, [*back, *suspects], now)
    used = {row.endpoint_id: states[row.endpoint_id] for row in kept if row.endpoint_id in states}
    sendable = {id_: s for id_, s in used.items() if s.status == endpoints.ENABLED}
    targets.refresh(connection, sendable, claimed[0].claimed_at, now)
    return Taken(
        kept,
        used,
        counted.probes(),
        following,
        found=True,
        suspects=bool(suspects),
    )


def put_back(connection: Connection, work: Sequence[Claimed], now: datetime | None) -> None:
    """Return claims that nothing was done with, as if never made."""
    settle.give_back(connection, [_returned(row, timedelta()) for row in work], now)


def _on_trial(
    claimed: Sequence[Claimed], trial_free: bool
) -> tuple[list[Claimed], list[dict[str, Any]]]:
    """Let at most one delivery at its last claim go ahead.

    If it does kill the worker, no bystander is counted with it; and a worker that is killed from
    outside, however often, never condemns more than one delivery at a time.
    """
    kept: list[Claimed] = []
    back: list[dict[str, Any]] = []
    for row in claimed:
        if row.claims == POISON_CLAIMS:
            if not trial_free:
                back.append(_returned(row, SUSPECT_PAUSE))
                continue
            trial_free = False
        kept.append(row)
    return kept, back


def _returned(row: Claimed, delay: timedelta) -> dict[str, Any]:
    return {
        "delivery_id": row.delivery_id,
        "token": row.token,
        "claims": row.claims,
        "delay": delay.total_seconds(),
    }


class _Count:
    """Counts claims where they are limited: one probe of an open circuit, so many a second."""

    def __init__(
        self,
        connection: Connection,
        states: Mapping[str, State],
        lease: timedelta,
        at: datetime,
    ) -> None:
        self._connection = connection
        self._states = states
        self._lease = lease
        self._at = at
        self._probes: set[str] = set()

    def probes(self) -> frozenset[str]:
        return frozenset(self._probes)

    def keep(self, claimed: Sequence[Claimed]) -> tuple[list[Claimed], list[dict[str, Any]]]:
        """Split into what may be sent and what goes back for later."""
        kept: list[Claimed] = []
        limited: dict[str, list[Claimed]] = {}
        for row in claimed:
            state = self._states.get(row.endpoint_id)
            if state is not None and state.status == endpoints.ENABLED and self._limits(state):
                limited.setdefault(row.endpoint_id, []).append(row)
            else:
                kept.append(row)
        back: list[dict[str, Any]] = []
        if limited:
            locked = endpoints.lock_for_claim(self._connection, list(limited))
            for endpoint_id, rows in limited.items():
                count, delay = self._grant(endpoint_id, rows, locked.get(endpoint_id))
                kept += rows[:count]
                back += [_returned(row, delay) for row in rows[count:]]
        return kept, back

    @staticmethod
    def _limits(state: State) -> bool:
        return bool(state.rate_limit) or state.circuit == "open"

    def _grant(
        self, endpoint_id: str, rows: Sequence[Claimed], locked: Mapping[str, Any] | None
    ) -> tuple[int, timedelta]:
        """How many may be sent, and how long the others wait."""
        if locked is None:  # another worker is counting here
            return 0, timedelta()
        state = self._states[endpoint_id]
        wanted = len(rows)
        if state.circuit == "open":
            if locked["paused_until"] is not None and locked["paused_until"] > self._at:
                return 0, timedelta()
            wanted = 1
            endpoints.set_health(
                self._connection, endpoint_id, {"paused_until": self._at + self._lease}
            )
            self._probes.add(rows[0].delivery_id)
        if not state.rate_limit:
            return wanted, timedelta()
        granted = grant(wanted, state.rate_limit, locked["rate_next_at"], self._at)
        endpoints.set_rate(self._connection, endpoint_id, granted.next_at)
        if not granted.count:
            self._probes.discard(rows[0].delivery_id)
        return granted.count, granted.next_at - self._at
