"""A service with a clock that the test moves, on both databases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from delivery_service.clock import ManualClock
from tests.support.stored import Stored, open_service


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 11, 29, 10, tzinfo=UTC))


@pytest.fixture
async def stored(database_url: str, clock: ManualClock) -> AsyncIterator[Stored]:
    async with open_service(database_url, clock) as service:
        yield Stored(service)
