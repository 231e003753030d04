"""One request to an endpoint through everything that a real attempt goes through, but stored
nowhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from delivery_service.bootstrap import Service
from delivery_service.cli.failing import CommandError
from delivery_service.policy.outcome import Outcome
from delivery_service.store import endpoints, workers
from delivery_service.store.queue import Claimed
from delivery_service.store.states import states_of
from delivery_service.worker.attempt import LeaseTime, Sending, make_attempt
from delivery_service.worker.targets import Target
from wire.envelope import encode_event
from wire.ids import DELIVERY, EVENT, new_id

EVENT_TYPE = "surehook.test"


@dataclass(frozen=True)
class Loaded:
    """An endpoint as a worker would load it. ``target`` is what made it unusable, if that."""

    row: Mapping[str, Any]
    target: Target | Exception
    at: datetime


@dataclass(frozen=True)
class Trial:
    """What was sent and what became of it."""

    delivery_id: str
    request_headers: str
    body: bytes
    outcome: Outcome


def load(connection: Connection, sending: Sending, endpoint_id: str) -> Loaded:
    """Load an endpoint. Raises `CommandError` when there is none."""
    row = endpoints.get(connection, endpoint_id)
    if row is None:
        raise CommandError(f"there is no endpoint {endpoint_id}")
    at = workers.time(connection)
    sending.targets.refresh(connection, states_of(connection, [endpoint_id]), at, None)
    try:
        return Loaded(row, sending.targets.get(endpoint_id), at)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is shown
        return Loaded(row, error, at)


async def try_endpoint(service: Service, endpoint_id: str, data: object) -> Trial:
    """Send one signed test event to an endpoint, enabled or not; retried never, counted nowhere.

    Raises `CommandError` when there is no such endpoint.
    """
    sending = service.sending()
    try:
        loaded = await service.database.read(load, sending, endpoint_id)
        claimed = _claimed(loaded, data)
        time = LeaseTime(loaded.at, service.clock.monotonic(), service.clock)
        result = await make_attempt(sending, claimed, time)
    finally:
        await sending.transport.close()
    if result.outcome is None or result.attempt is None:
        raise CommandError(f"{endpoint_id}: no attempt was made")
    return Trial(
        claimed.delivery_id, result.attempt["request_headers"], claimed.body, result.outcome
    )


def _claimed(loaded: Loaded, data: object) -> Claimed:
    event_id = new_id(EVENT)
    return Claimed(
        delivery_id=new_id(DELIVERY),
        endpoint_id=loaded.row["id"],
        event_id=event_id,
        tenant_id=loaded.row["tenant_id"],
        event_type=EVENT_TYPE,
        status="pending",
        attempts=0,
        attempts_before=0,
        body=encode_event(event_id, EVENT_TYPE, loaded.at, data),
        content_type="application/json",
        trace_context=None,
        token="",
        claims=1,
        claimed_at=loaded.at,
    )
