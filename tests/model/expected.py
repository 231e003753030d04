"""What the database ought to hold: the rules of the engine once more, in their simplest form.

Nothing here imports the engine's policies: a rule that is wrong there must not be wrong here too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

SCHEDULE = (timedelta(minutes=1), timedelta(minutes=5))
RETRY_AFTER_CAP = timedelta(minutes=10)
POISON_CLAIMS = 3
ENDINGS = {"gone": ("dead", "endpoint_gone")}
DISABLED = ("skipped", "endpoint_disabled")


@dataclass
class Lease:
    token: str
    end: datetime


@dataclass
class Delivery:
    """One delivery as it ought to be. ``due`` None: not predicted."""

    id: str
    event_id: str
    endpoint_id: str
    body: bytes
    status: str = "pending"
    reason: str | None = None
    attempts: int = 0
    attempts_before: int = 0
    claims: int = 0
    lease: Lease | None = None
    due: datetime | None = None
    late: int = 0
    delivered_in_run: int = 0

    def end(self, status: str, reason: str | None) -> None:
        self.status, self.reason = status, reason
        self.lease = self.due = None
        self.claims = 0


@dataclass
class Endpoint:
    """``secrets``: text → when it stops signing (None: it is the current one)."""

    id: str
    tenant: str
    url: str
    secrets: dict[str, datetime | None]
    disabled_reason: str | None = None
    deleted: bool = False
    first_failure: datetime | None = None

    @property
    def enabled(self) -> bool:
        return not self.deleted and self.disabled_reason is None

    def active(self, at: datetime) -> frozenset[str]:
        return frozenset(s for s, end in self.secrets.items() if end is None or end > at)


@dataclass
class Expected:
    """The whole of what was published, and where each delivery stands."""

    deliveries: dict[str, Delivery] = field(default_factory=dict)
    endpoints: dict[str, Endpoint] = field(default_factory=dict)
    recorded: set[str] = field(default_factory=set)
    """Ids of attempts that a commit has stored."""

    def published(self, delivery: Delivery, at: datetime, *, enabled: bool) -> None:
        """``enabled``: as the publisher's transaction saw the endpoint."""
        assert delivery.id not in self.deliveries
        if not enabled:
            delivery.end(*DISABLED)
        else:
            delivery.due = at
        self.deliveries[delivery.id] = delivery

    def claimed(self, work: Iterable[Any], at: datetime, lease: timedelta) -> None:
        for claimed in work:
            delivery = self.deliveries[claimed.delivery_id]
            live = delivery.lease is not None and delivery.lease.end > at
            assert not live, f"two live leases of {delivery.id}"
            assert delivery.status == "pending", f"claimed {delivery.id}: {delivery.status}"
            assert delivery.due is None or delivery.due <= at, f"claimed {delivery.id} early"
            assert claimed.claims == delivery.claims + 1
            assert claimed.attempts == delivery.attempts
            assert claimed.body == delivery.body
            delivery.claims += 1
            delivery.lease = Lease(claimed.token, at + lease)
            delivery.due = at + lease

    def settled(self, results: Iterable[Any], at: datetime) -> set[str]:
        """Results were committed. Returns the ids of those that ought to count as late."""
        late = set()
        gone = set()
        for result in results:
            attempt = result.attempt
            if attempt is not None and attempt["id"] in self.recorded:
                continue
            delivery = self.deliveries[result.claimed.delivery_id]
            current = delivery.lease is not None and delivery.lease.token == result.claimed.token
            if attempt is not None:
                self.recorded.add(attempt["id"])
                delivery.late += not current
            if not current:
                late.add(delivery.id)
            elif attempt is None:
                delivery.end(result.step.status, result.step.reason)
            else:
                self._attempted(delivery, result.outcome, at)
                if result.outcome.status_code == 410:
                    gone.add(delivery.endpoint_id)
        for endpoint_id in gone:
            if self.endpoints[endpoint_id].enabled:
                self.disabled(endpoint_id, "gone")
        return late

    def _attempted(self, delivery: Delivery, outcome: Any, at: datetime) -> None:
        delivery.attempts += 1
        run = delivery.attempts - delivery.attempts_before
        status = outcome.status_code or 0
        if 200 <= status < 300:
            delivery.end("delivered", None)
            delivery.delivered_in_run += 1
            assert delivery.delivered_in_run == 1
        elif status == 410:
            delivery.end("dead", "endpoint_gone")
        elif run > len(SCHEDULE):
            delivery.end("dead", "schedule_used_up")
        else:
            delay = SCHEDULE[run - 1]
            if status in (429, 503) and outcome.retry_after:
                asked = timedelta(seconds=int(outcome.retry_after))
                delay = max(delay, min(asked, RETRY_AFTER_CAP))
            delivery.lease, delivery.claims, delivery.due = None, 0, at + delay

    def disabled(self, endpoint_id: str, reason: str) -> None:
        self.endpoints[endpoint_id].disabled_reason = reason
        self._end_pending(endpoint_id, *ENDINGS.get(reason, DISABLED))

    def deleted(self, endpoint_id: str) -> None:
        self.endpoints[endpoint_id].deleted = True
        self._end_pending(endpoint_id, "cancelled", "endpoint_deleted")

    def _end_pending(self, endpoint_id: str, status: str, reason: str) -> None:
        for delivery in self.deliveries.values():
            if delivery.endpoint_id == endpoint_id and delivery.status == "pending":
                delivery.end(status, reason)

    def redelivered(self, delivery_id: str, at: datetime) -> bool:
        """Whether a redelivery ought to work; if so, it has."""
        delivery = self.deliveries[delivery_id]
        if delivery.status == "pending" or not self.endpoints[delivery.endpoint_id].enabled:
            return False
        delivery.status, delivery.reason = "pending", None
        delivery.attempts_before = delivery.attempts
        delivery.claims, delivery.lease, delivery.due = 0, None, at
        delivery.delivered_in_run = 0
        return True
