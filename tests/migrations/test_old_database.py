"""D03: what was pending before an upgrade is delivered after it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, DateTime, MetaData, Table, insert

from delivery_service import migrations
from delivery_service.bootstrap import build
from delivery_service.clock import ManualClock
from sender import tables
from tests.support.receiver import Answer, Receiver
from tests.support.stored import Stored, settings_for
from wire import generate_secret, verify
from wire.ids import DELIVERY, ENDPOINT, EVENT, new_id

OLDEST = "0001"
START = datetime(2026, 11, 29, 10, tzinfo=UTC)
SECRET = generate_secret()

# Attempts made, when due (seconds from the start), claims without an attempt recorded, whether a
# worker of the old version held it when it was stopped.
WAITING = [
    (0, -60, 0, False),
    (1, -1, 0, False),
    (2, 90, 0, False),
    (3, 30, 1, True),
    (5, 3600, 0, False),
]


class OldDatabase:
    """Rows as version 0001 wrote them: through the tables found there, not those of today."""

    def __init__(self, connection: Connection, ciphertext: bytes, url: str) -> None:
        self._connection = connection
        self._found = MetaData()
        self._found.reflect(connection)
        self.endpoint_id = new_id(ENDPOINT, now=START)
        times = {"created_at": START, "updated_at": START}
        self._add("endpoints", id=self.endpoint_id, tenant_id="acme", url=url, **times)
        self._add(
            "secrets",
            id=new_id("sec", now=START),
            endpoint_id=self.endpoint_id,
            ciphertext=ciphertext,
            created_at=START,
        )

    def delivery(self, attempts: int, due: float, claims: int, held: bool) -> tuple[str, bytes]:
        """A pending delivery; returns its id and its body."""
        event_id, delivery_id = new_id(EVENT, now=START), new_id(DELIVERY, now=START)
        # Spaces and 1.0: no encoder of ours would write it like this.
        body = f'{{"id": "{event_id}", "n": 1.0}}'.encode()
        self._add(
            "events",
            id=event_id,
            tenant_id="acme",
            type="invoice.paid",
            body=body,
            content_type="application/json",
            created_at=START,
        )
        self._add(
            "deliveries",
            id=delivery_id,
            event_id=event_id,
            endpoint_id=self.endpoint_id,
            tenant_id="acme",
            event_type="invoice.paid",
            status="pending",
            attempts=attempts,
            created_at=START,
        )
        self._add(
            "queue",
            delivery_id=delivery_id,
            endpoint_id=self.endpoint_id,
            lane=int(attempts > 0),
            due_at=START + timedelta(seconds=due),
            claims=claims,
            lease_token="a worker of the old version" if held else None,
        )
        return delivery_id, body

    def _add(self, name: str, **values: Any) -> None:
        table: Table = self._found.tables[f"surehook_{name}"]
        if self._connection.dialect.name == "sqlite":
            # Reflection finds plain columns; naive UTC is what is stored there.
            values = {
                key: value.replace(tzinfo=None)
                if isinstance(table.c[key].type, DateTime)
                else value
                for key, value in values.items()
            }
        self._connection.execute(insert(table).values(values))


async def test_d03_pending_retries_of_an_old_database_are_delivered(
    database_url: str, receiver: Receiver
) -> None:
    receiver.script("/hook", Answer(500), Answer(204))  # and one of them fails once more
    clock = ManualClock(START)
    service = build(settings_for(database_url), clock)
    stored = Stored(service)
    database = service.database
    sealed = service.sealer.seal(SECRET)
    made: dict[str, tuple[int, bytes]] = {}

    def fill(connection: Connection) -> None:
        old = OldDatabase(connection, sealed, receiver.url("/hook"))
        for waiting in WAITING:
            delivery_id, body = old.delivery(*waiting)
            made[delivery_id] = (waiting[0], body)

    try:
        await migrations.upgrade(database, OLDEST)
        await database.write(fill)
        await migrations.upgrade(database)
        await migrations.check_head(database)
        assert await stored.count(tables.queue) == len(WAITING)

        await stored.work()
        # Only what was due, each as the next attempt of its own; none afresh.
        assert len(receiver.requests) == 2
        for _ in range(4):
            clock.advance(timedelta(hours=1))
            await stored.work()

        is_delivered = tables.deliveries.c.status == "delivered"
        assert await stored.count(tables.deliveries, is_delivered) == len(WAITING)
        assert await stored.count(tables.queue) == 0
    finally:
        await service.close()

    numbers: dict[str, list[int]] = {}
    for request in receiver.requests:
        headers = {name.decode(): value.decode() for name, value in request.headers}
        sent_at = datetime.fromtimestamp(int(headers["webhook-timestamp"]), UTC)
        verified = verify([SECRET], headers, request.body, now=sent_at)
        _, body = made[verified.id]
        assert request.body == body
        assert json.loads(body)["id"] == headers["X-Webhook-Event-Id"]
        numbers.setdefault(verified.id, []).append(int(headers["X-Webhook-Attempt"]))
    assert len(receiver.requests) == len(WAITING) + 1
    for delivery_id, found in numbers.items():
        first = made[delivery_id][0] + 1
        assert found == list(range(first, first + len(found)))
