"""Deadlines that are looked at together behave as `asyncio.timeout` does."""

from __future__ import annotations

import asyncio

import pytest

from delivery_service.net.deadlines import Deadlines


async def late(deadlines: Deadlines, seconds: float) -> str:
    try:
        with deadlines.within(seconds):
            await asyncio.Event().wait()
    except TimeoutError:
        return "late"
    return "in time"


async def test_each_deadline_ends_its_own_task():
    deadlines = Deadlines()
    longest = asyncio.create_task(late(deadlines, 30))
    assert await asyncio.wait_for(late(deadlines, 0.01), 5) == "late"
    assert not longest.done()
    longest.cancel()
    with pytest.raises(asyncio.CancelledError):
        await longest


async def test_in_time_is_left_alone():
    with Deadlines().within(5):
        await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_watching_begins_again_after_a_quiet_time():
    deadlines = Deadlines()
    for _ in range(2):
        assert await asyncio.wait_for(late(deadlines, 0.01), 5) == "late"
        await asyncio.sleep(0)


async def test_a_cancellation_by_others_stays_one():
    deadlines = Deadlines()
    deadline = deadlines.within(30)

    async def block() -> None:
        with deadline:
            await asyncio.Event().wait()

    task = asyncio.create_task(block())
    await asyncio.sleep(0)
    task.cancel()
    deadline.passes()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_an_error_inside_is_not_hidden():
    deadlines = Deadlines()
    with pytest.raises(KeyError), deadlines.within(5):
        raise KeyError
    assert await asyncio.wait_for(late(deadlines, 0.01), 5) == "late"
