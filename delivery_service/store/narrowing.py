"""What deliveries can be selected by, beside what they belong to.

`Narrow` is the one place that says so: the API's filter and the command line's options follow it.

No column here has an index of its own: each attempt changes it, and an index on it would make that
change touch every index (docs/decisions/0001-queue-table.md). A list reads deliveries in the order
of an index that it has anyway, and each condition that can leads to the smallest one.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, get_type_hints

from sqlalchemy import ColumnElement, literal, select

from delivery_service.policy.outcome import OutcomeKind
from sender.tables import deliveries, queue
from sender.types import UtcDateTime
from wire.ids import DELIVERY, first_id

Status = Literal["pending", "delivered", "dead", "cancelled", "skipped"]
Reason = Literal[
    "schedule_used_up",
    "endpoint_gone",
    "endpoint_disabled",
    "endpoint_unverified",
    "endpoint_deleted",
    "cancelled",
    "poison",
    "pulled",
]
PULLED = "pulled"
"""The one reason that delivered deliveries have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrow:
    """Conditions, all of which must hold; None asks for nothing.

    Each is annotated with its type and what it selects, as `MEMBERS` gives them.
    """

    reason: Annotated[Reason | None, "Why it ended."] = None
    last_outcome: Annotated[OutcomeKind | None, "The `kind` of the latest attempt."] = None
    min_attempts: Annotated[int | None, "With so many attempts or more."] = None
    max_attempts: Annotated[int | None, "With so many attempts or fewer."] = None
    in_flight: Annotated[bool | None, "Whether a worker is sending it."] = None
    copy_of: Annotated[str | None, "Sent as new for that delivery."] = None
    ended_since: Annotated[datetime | None, "Ended at that time or later."] = None
    ended_until: Annotated[datetime | None, "Ended before that time."] = None

    def conditions(self) -> list[ColumnElement[bool]]:
        """Return conditions on deliveries with their queue rows, if they have any."""
        table = deliveries.c
        found: list[ColumnElement[bool]] = []
        if self.reason is not None:
            found.append(table.reason == self.reason)
            if self.reason != PULLED:
                found.append(table.undelivered)
        if self.last_outcome is not None:
            found.append(table.last_outcome == self.last_outcome)
        if self.min_attempts is not None:
            found.append(table.attempts >= self.min_attempts)
        if self.max_attempts is not None:
            found.append(table.attempts <= self.max_attempts)
        if self.in_flight is not None:
            token = queue.c.lease_token
            found.append(token.is_not(None) if self.in_flight else token.is_(None))
        return found + self._of_copies() + self._of_ends()

    def _of_copies(self) -> list[ColumnElement[bool]]:
        if self.copy_of is None:
            return []
        # A copy is of the same event, by which deliveries are found.
        first = deliveries.alias("first")
        its_event = select(first.c.event_id).where(first.c.id == self.copy_of).scalar_subquery()
        return [deliveries.c.event_id == its_event, deliveries.c.copy_of == self.copy_of]

    def _of_ends(self) -> list[ColumnElement[bool]]:
        found: list[ColumnElement[bool]] = []
        if self.ended_since is not None:
            found.append(deliveries.c.ended_at >= literal(self.ended_since, UtcDateTime()))
        if self.ended_until is not None:
            found.append(deliveries.c.ended_at < literal(self.ended_until, UtcDateTime()))
            # None ends before it is created, and ids begin with that.
            found.append(deliveries.c.id < first_id(DELIVERY, self.ended_until))
        return found


@dataclass(frozen=True, slots=True)
class Member:
    """One of the conditions: the type of its value, and what it selects."""

    type: Any
    meaning: str


MEMBERS = {
    name: Member(hint.__origin__, hint.__metadata__[0])
    for name, hint in get_type_hints(Narrow, include_extras=True).items()
}
"""The conditions by name."""
