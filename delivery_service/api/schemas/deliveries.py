"""Deliveries and attempts."""

from __future__ import annotations

import codecs
import json
import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from delivery_service.api.schemas.common import (
    EventType,
    Moment,
    PageParameters,
    Shown,
    TenantId,
    UtcMoment,
    digits,
    filter_id,
    id_pattern,
)
from delivery_service.store.narrowing import MEMBERS, Narrow, Reason, Status
from wire.ids import ATTEMPT, DELIVERY, ENDPOINT, EVENT

Kind = Literal[
    "delivered",
    "status",
    "redirect",
    "timeout",
    "dns",
    "connect",
    "tls",
    "protocol",
    "blocked",
    "authentication",
    "internal",
]
Count = Annotated[int, BeforeValidator(digits), Field(ge=0, le=100_000)]
_UNSAFE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
BLOCKED = "blocked"


class Delivery(Shown):
    """One event to one endpoint."""

    id: str = Field(json_schema_extra=id_pattern(DELIVERY))
    event: str = Field(json_schema_extra=id_pattern(EVENT))
    event_type: str
    endpoint: str = Field(json_schema_extra=id_pattern(ENDPOINT))
    tenant: str
    status: Status
    reason: str | None = Field(
        description="Why it ended: `schedule_used_up`, `endpoint_gone`, `endpoint_disabled`,"
        " `endpoint_unverified`, `endpoint_deleted`, `cancelled`, `poison` or `pulled`."
    )
    attempts: int = Field(description="Attempts made so far.")
    last_outcome: str | None = Field(description="The `kind` of the latest attempt.")
    in_flight: bool = Field(description="Whether a worker is sending it.")
    next_attempt_at: UtcMoment | None = Field(
        description="When the next attempt is due, unless the endpoint is held back."
    )
    copy_of: str | None = Field(description="The delivery that this one was sent anew for.")
    created_at: UtcMoment
    ended_at: UtcMoment | None


def _narrowing(name: str, **options: Any) -> Any:
    return Field(None, description=MEMBERS[name].meaning, **options)


class DeliveryFilter(PageParameters):
    """Which deliveries to list."""

    tenant: TenantId | None = None
    endpoint: Annotated[str, filter_id(ENDPOINT)] | None = Field(
        None, json_schema_extra={"pattern": id_pattern(ENDPOINT)["pattern"]}
    )
    event: Annotated[str, filter_id(EVENT)] | None = Field(
        None, json_schema_extra={"pattern": id_pattern(EVENT)["pattern"]}
    )
    event_type: EventType | None = None
    status: Status | None = None
    since: Moment | None = Field(None, description="Created at that time or later.")
    until: Moment | None = Field(None, description="Created before that time.")
    ended_since: Moment | None = _narrowing("ended_since")
    ended_until: Moment | None = _narrowing("ended_until")
    reason: Reason | None = _narrowing("reason")
    last_outcome: Kind | None = _narrowing("last_outcome")
    min_attempts: Count | None = _narrowing("min_attempts")
    max_attempts: Count | None = _narrowing("max_attempts")
    in_flight: bool | None = _narrowing("in_flight")
    copy_of: Annotated[str, filter_id(DELIVERY)] | None = _narrowing(
        "copy_of", json_schema_extra={"pattern": id_pattern(DELIVERY)["pattern"]}
    )

    def narrow(self) -> Narrow:
        """Return the conditions of these that are no equality with what a delivery belongs to."""
        return Narrow(**{name: getattr(self, name) for name in MEMBERS})


class Attempt(Shown):
    """One HTTP request of a delivery."""

    id: str = Field(json_schema_extra=id_pattern(ATTEMPT))
    number: int = Field(description="Counted from 1.")
    late: bool = Field(
        description="Whether it ended after its lease had, so that it decided nothing."
    )
    started_at: UtcMoment
    duration: float = Field(description="Seconds.")
    url: str
    kind: str = Field(
        description="`delivered`, `status`, `redirect`, `timeout`, `dns`, `connect`, `tls`,"
        " `protocol`, `blocked`, `authentication` or `internal`."
    )
    status_code: int | None
    error: str | None
    may_have_arrived: bool = Field(
        description="Whether the receiver may have acted on it although it failed."
    )
    request_headers: dict[str, str] = Field(description="As sent; signatures are hidden.")
    response_headers: list[tuple[str, str]]
    response_body: str | None = Field(
        description="The first bytes of the answer, as text; what is no text is replaced."
    )
    response_truncated: bool


def show_delivery(row: dict[str, Any]) -> Delivery:
    """Return a delivery with its queue row's columns as it is shown."""
    in_flight = row["lease_token"] is not None
    return Delivery(
        id=row["id"],
        event=row["event_id"],
        event_type=row["event_type"],
        endpoint=row["endpoint_id"],
        tenant=row["tenant_id"],
        status=row["status"],
        reason=row["reason"],
        attempts=row["attempts"],
        last_outcome=row["last_outcome"],
        in_flight=in_flight,
        next_attempt_at=None if in_flight else row["due_at"],
        copy_of=row["copy_of"],
        created_at=row["created_at"],
        ended_at=row["ended_at"],
    )


def show_attempt(row: dict[str, Any], *, to_tenant: bool) -> Attempt:
    """Return an attempt as it is shown.

    To a tenant, a refusal by the SSRF guard is just "blocked": its reason would describe the
    platform's network.
    """
    hidden = to_tenant and row["kind"] == BLOCKED
    return Attempt(
        **{
            **row,
            "error": BLOCKED if hidden else row["error"],
            "request_headers": json.loads(row["request_headers"]),
            "response_headers": json.loads(row["response_headers"] or "[]"),
            "response_body": readable(row["response_body"], truncated=row["response_truncated"]),
        }
    )


def readable(content: bytes | None, *, truncated: bool) -> str | None:
    """Return any bytes as text that is safe to show: UTF-8, without control characters.

    A character that was cut through at the end is left out.
    """
    if content is None:
        return None
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return _UNSAFE.sub(_REPLACEMENT, decoder.decode(content, final=not truncated))
