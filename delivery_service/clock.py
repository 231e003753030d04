"""Where time comes from. Only the composition root chooses; everything else is handed a clock."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """What the service asks about time."""

    def now(self) -> datetime | None:
        """The moment to hand to the store: None means the database's own clock."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment, for measuring how long something took."""


class DatabaseClock:
    """Production: the database's clock decides what is due and when leases end, so that a
    worker whose clock is wrong does no harm; durations are measured here."""

    def now(self) -> datetime | None:
        return None

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that stands still until it is told to move."""

    def __init__(self, start: datetime) -> None:
        self.moment = start

    def now(self) -> datetime | None:
        return self.moment

    def monotonic(self) -> float:
        return self.moment.timestamp()

    def advance(self, by: timedelta) -> None:
        """Move the clock forward by ``by``."""
        self.moment += by
