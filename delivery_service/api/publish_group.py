"""Events that are published at the same moment share a transaction.

While one transaction is being committed, the requests that come in wait, and go into the next one
together. A commit costs more than the rows of an event, so a busy process publishes several times
as many events, and an idle one waits for nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from delivery_service.api.problems import Problem
from sender import NewEvent, Published, publish_many

if TYPE_CHECKING:
    from delivery_service.api.context import Context

MOST_EVENTS = 100
"""Events of one transaction: with the largest bodies, 25 MiB."""
TRANSACTIONS = 2
"""Transactions at a time: one is filled while the other waits for the disk."""

Waiting = tuple[NewEvent, "asyncio.Future[Published]"]


class PublishGroup:
    """Publishes single events, those of concurrent calls together.

    Events with an idempotency key have a transaction of their own: it may have to wait for
    another that holds the same key, and the others must not wait with it.
    """

    def __init__(self) -> None:
        self._waiting: list[Waiting] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def publish(self, context: Context, event: NewEvent) -> Published:
        """Publish and commit. Raises what `publish_many` raises, for this event alone."""
        if event.idempotency_key is not None:
            return (await _write(context, [event]))[0]
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # a loop that ended took its tasks along
            self._loop, self._waiting, self._tasks = loop, [], set()
        outcome: asyncio.Future[Published] = loop.create_future()
        self._waiting.append((event, outcome))
        if len(self._tasks) < TRANSACTIONS:
            task = loop.create_task(self._work(context))
            self._tasks.add(task)
        return await outcome

    async def _work(self, context: Context) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting[:MOST_EVENTS], self._waiting[MOST_EVENTS:]
                await _settle(context, group)
        finally:
            # At once, and not in a callback: whoever comes in between would wait for nobody.
            self._tasks.discard(cast("asyncio.Task[None]", asyncio.current_task()))


async def _settle(context: Context, group: list[Waiting]) -> None:
    try:
        done = await _write(context, [event for event, _ in group])
    except asyncio.CancelledError:
        for _, outcome in group:
            outcome.cancel()
        raise
    except Exception as error:  # noqa: BLE001 - whoever published it is told
        # The database being away is the same for all; anything else is one event's fault.
        if len(group) > 1 and not isinstance(error, Problem):
            for each in group:
                await _settle(context, [each])
            return
        for _, outcome in group:
            if not outcome.done():
                outcome.set_exception(error)
        return
    for (_, outcome), published in zip(group, done, strict=True):
        if not outcome.done():
            outcome.set_result(published)


async def _write(context: Context, events: list[NewEvent]) -> list[Published]:
    limit = context.settings.max_body_bytes
    return await context.write(publish_many, events, max_body_bytes=limit, now=context.now)
