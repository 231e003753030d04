"""Operational events: what the platform should know, told by webhook like everything else.

They are published to the platform's own tenant, in the transaction that records the cause, and
delivered by the ordinary path to whatever endpoints that tenant has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from delivery_service.policy.health import EndpointHealth
from delivery_service.store.queue import Claimed
from sender import NewEvent, publish_many
from wire.envelope import format_timestamp

OPERATOR = "_operator"
"""The platform's own tenant."""

NAMED = 100
"""Deliveries that one event names at most; ``count`` has them all."""


@dataclass(frozen=True, slots=True)
class Notice:
    """One operational event about one tenant's endpoint."""

    type: str
    tenant_id: str
    data: Mapping[str, Any]


def of_endpoint(
    type_: str, row: Mapping[str, Any], health: EndpointHealth, reason: str | None = None
) -> Notice:
    """A notice about an endpoint: how long it has been failing, and how often in a row."""
    data: dict[str, Any] = {
        "endpoint_id": row["id"],
        "tenant_id": row["tenant_id"],
        "failures": health.failures,
        "failing_since": health.failing_since and format_timestamp(health.failing_since),
    }
    if reason is not None:
        data["reason"] = reason
    return Notice(type_, row["tenant_id"], data)


def exhausted(dead: Sequence[Claimed]) -> list[Notice]:
    """Notices of deliveries whose schedule is used up: one for each endpoint, with the count."""
    by_endpoint: dict[str, list[Claimed]] = {}
    for claimed in dead:
        by_endpoint.setdefault(claimed.endpoint_id, []).append(claimed)
    return [
        Notice(
            "delivery.exhausted",
            rows[0].tenant_id,
            {
                "endpoint_id": endpoint_id,
                "tenant_id": rows[0].tenant_id,
                "count": len(rows),
                "delivery_ids": [row.delivery_id for row in rows[:NAMED]],
            },
        )
        for endpoint_id, rows in by_endpoint.items()
    ]


def publish_notices(
    connection: Connection, notices: Sequence[Notice], now: datetime | None
) -> None:
    """Publish notices. Those about the operator's own endpoints are not, or a failing one would
    be told of itself for ever."""
    events = [
        NewEvent(tenant=OPERATOR, type=notice.type, data=notice.data)
        for notice in notices
        if notice.tenant_id != OPERATOR
    ]
    if events:
        publish_many(connection, events, now=now)
