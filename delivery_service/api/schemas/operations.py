"""Operations: bulk work and broadcasts."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from delivery_service.api.schemas.common import (
    EventType,
    Given,
    Moment,
    PageParameters,
    Shown,
    TenantId,
    UtcMoment,
    filter_id,
    id_pattern,
)
from delivery_service.api.schemas.deliveries import Kind as OutcomeName
from delivery_service.api.schemas.events import Data
from delivery_service.store import bulk
from delivery_service.store.bulk import Ended, Kind
from delivery_service.store.narrowing import Reason
from delivery_service.store.operations import Status
from wire.ids import ENDPOINT, OPERATION

OF_DELIVERIES = (
    "since",
    "until",
    "tenant",
    "endpoint",
    "event_type",
    "status",
    "reason",
    "last_outcome",
)
OF_BROADCAST = ("type", "data")


class NewOperation(Given):
    """Work to do on many deliveries, or an event for all tenants."""

    kind: Kind = Field(
        description="`recover` redelivers what was not delivered, `replay` what was delivered too,"
        " `cancel` cancels what is pending, `broadcast` publishes an event for every tenant.",
        examples=["recover"],
    )
    since: Moment | None = Field(
        None,
        description="Deliveries created at that time or later. Required, but for a broadcast.",
        examples=["2026-11-29T08:00:00Z"],
    )
    until: Moment | None = Field(
        None, description="Deliveries created before that time; left out, before the operation."
    )
    tenant: TenantId | None = None
    endpoint: Annotated[str, filter_id(ENDPOINT)] | None = Field(
        None, json_schema_extra={"pattern": id_pattern(ENDPOINT)["pattern"]}
    )
    event_type: EventType | None = None
    status: Ended | None = Field(
        None,
        description="Only those in that state. What was cancelled is redelivered only if this"
        " says `cancelled`, or `reason` why.",
    )
    reason: Reason | None = Field(
        None,
        description="Only those that ended for that reason; cancelled ones too if it is theirs.",
    )
    last_outcome: OutcomeName | None = Field(
        None, description="Only those whose latest attempt was of that `kind`."
    )
    dry_run: bool = Field(False, description="Only count, and change nothing.")
    type: EventType | None = Field(None, description="Event type of a broadcast.")
    data: Data = None


class Operation(Shown):
    """Bulk work, and how far it is. `matched` is `done` and `passed_over` together."""

    id: str = Field(json_schema_extra=id_pattern(OPERATION))
    kind: Kind
    filter: dict[str, Any] = Field(description="Which deliveries, as given; a broadcast's `type`.")
    idempotency_key: str | None
    status: Status
    progress: float | None = Field(
        description="From 0 to 1, by the time that the deliveries were created; null where that"
        " says nothing."
    )
    matched: int = Field(description="Deliveries that matched so far; tenants, of a broadcast.")
    done: int = Field(description="How many of them were redelivered, cancelled or published for.")
    passed_over: dict[str, int] = Field(
        description="How many could not be, by reason: `cancelled`, `replay_window_over`,"
        " `endpoint_deleted`, `endpoint_disabled`, `event_removed`, `body_deleted`, `overtaken`"
        " (changed meanwhile) or `already_published`."
    )
    error: str | None = Field(description="Why it failed.")
    created_at: UtcMoment
    updated_at: UtcMoment = Field(
        description="When a batch was last done, or when it was queued or ended."
    )
    ended_at: UtcMoment | None


class OperationCount(Shown):
    """What an operation would do now. `matched` is `possible` and `passed_over` together."""

    kind: Kind
    matched: int = Field(description="Deliveries that match; tenants, of a broadcast.")
    possible: int = Field(
        description="How many of them would be redelivered, cancelled or published for."
    )
    passed_over: dict[str, int] = Field(description="How many could not be, by reason.")


class OperationFilter(PageParameters):
    """Which operations to list."""

    kind: Kind | None = None
    status: Status | None = None


def show_operation(row: dict[str, Any]) -> Operation:
    """Return an operation as it is shown: without its lease, and without a broadcast's data."""
    return Operation(**{**row, "progress": bulk.progress(row)})
