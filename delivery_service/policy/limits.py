"""Per-endpoint rate limit: the generic cell rate algorithm (GCRA).

Its whole state is one moment, the earliest time at which the next request conforms, so workers
share it through a single column without ever holding a lock during HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

BURST_SECONDS = 1.0
"""How much unused allowance an idle endpoint keeps: one second's worth, at least one request."""


@dataclass(frozen=True, slots=True)
class Grant:
    """``count`` requests may start now; the next one at ``next_at``."""

    count: int
    next_at: datetime


def grant(wanted: int, rate: float, next_at: datetime | None, now: datetime) -> Grant:
    """Grant up to ``wanted`` requests at ``rate`` requests a second.

    ``next_at`` is the state that the previous grant left, None for a fresh endpoint.
    """
    interval = timedelta(seconds=1.0 / rate)
    burst = max(1, int(rate * BURST_SECONDS))
    earliest = now - interval * (burst - 1)
    start = earliest if next_at is None else max(next_at, earliest)
    if start > now:
        return Grant(0, start)
    available = int((now - start) / interval) + 1
    count = min(wanted, available, burst)
    return Grant(count, start + interval * count)
