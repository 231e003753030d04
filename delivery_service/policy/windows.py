"""Rate limit of API keys: a sliding window, counted in slots.

A window is divided into 60 slots. A request counts until the whole of its slot has left the
window, so no span of that length ever holds more requests than the limit; a place is free again up
to a sixtieth of the window later than a log of every request would say.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

SLOTS = 60


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether a request is within the limit, and the ``state`` to keep if it is.

    ``remaining``: requests still possible now. ``reset``: seconds until the next place becomes
    free.
    """

    admitted: bool
    remaining: int
    reset: float
    state: dict[str, Any]


def admit(state: dict[str, Any] | None, limit: int, window: timedelta, now: datetime) -> Admission:
    """Decide about one more request.

    ``state`` is that of the admission before, None for none. Counts of another window's length
    are given up.
    """
    seconds = window.total_seconds()
    slot_length = seconds / SLOTS
    at = now.timestamp()
    slot = math.floor(at / slot_length)
    counts: list[list[int]] = []
    if state is not None and state["window"] == seconds:
        counts = state["counts"]
    if counts:
        # The clock of a transaction that waited for its turn may be behind.
        slot = max(slot, counts[-1][0])
    counts = [[number, count] for number, count in counts if number >= slot - SLOTS]
    used = sum(count for _, count in counts)
    admitted = used < limit
    if admitted:
        used += 1
        if counts and counts[-1][0] == slot:
            counts[-1][1] += 1
        else:
            counts.append([slot, 1])
    reset = (_freeing(counts, used - limit) + SLOTS + 1) * slot_length - at
    kept = {"window": seconds, "counts": counts}
    return Admission(admitted, max(0, limit - used), max(0.0, reset), kept)


def _freeing(counts: list[list[int]], excess: int) -> int:
    """The slot that has to leave before there is a free place (more of one)."""
    left = excess + 1
    for number, count in counts:
        left -= count
        if left <= 0:
            return number
    return counts[0][0]
