"""A claim whose commit was heard of too late: its lease must not be used any more."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from delivery_service.clock import ManualClock
from delivery_service.store import deliveries
from delivery_service.store.database import Database
from delivery_service.worker.take import take
from tests.support.receiver import Receiver
from tests.support.stored import Stored, open_service


class SlowDatabase(Database):
    """Its first claim is committed at once, and answered much later."""

    def __init__(self, database: Database, clock: ManualClock, delay: timedelta) -> None:
        super().__init__(database.engine)
        self._clock = clock
        self._delay = delay
        self.claims = 0

    async def write(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        done = await super().write(work, *args, **kwargs)
        if work is take and done.work:
            self.claims += 1
            self._clock.advance(self._delay)
            self._delay = timedelta()
        return done


async def test_f15_nothing_is_sent_on_a_lease_that_may_end_first(
    database_url: str, receiver: Receiver
) -> None:
    clock = ManualClock(datetime(2026, 11, 29, 10, tzinfo=UTC))
    async with open_service(database_url, clock) as service:
        stored = Stored(service)
        await stored.endpoint(receiver.url("/hook"))
        (delivery_id,) = (await stored.publish()).delivery_ids
        lasts = service.settings.lease - service.settings.attempt_timeout
        worker = service.worker()
        slow = SlowDatabase(service.database, clock, lasts + timedelta(seconds=1))
        worker._database = slow
        await worker.run_until_idle()
        # The attempt belongs to the second claim; the first was given back.
        assert slow.claims == 2
        assert len(receiver.requests) == 1
        delivery = await service.database.read(deliveries.get, delivery_id)
        assert delivery is not None
        assert (delivery["status"], delivery["attempts"]) == ("delivered", 1)
        await worker._sending.transport.close()
