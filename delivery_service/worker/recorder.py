"""Group commit: the results of the last few milliseconds go into one transaction.

If the database is away, results wait in memory and are tried again for ever; the worker stops
claiming meanwhile, so what waits is bounded by what was in flight.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

import structlog
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    ProgrammingError,
    StatementError,
)

from delivery_service.clock import Clock
from delivery_service.policy.health import HealthRules
from delivery_service.policy.outcome import OutcomeKind
from delivery_service.store.database import Database
from delivery_service.worker.attempt import Result
from delivery_service.worker.record import Recorded, record

GROUP = 500
"""Results in one transaction at most."""

GROUP_BYTES = 2 * 2**20
"""Bytes of answers with which no more results are added to a transaction: on their way to the
database they exist several times over."""

ENOUGH = 100
"""Results for which no more are waited for."""

GATHER_SECONDS = 0.02
"""How long results are gathered while more are on their way."""

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
"""Seconds between tries while the database is away."""

VALUE_ERRORS = frozenset({"22", "23"})
"""SQLSTATE classes of values that can't be stored (PostgreSQL, appendix A)."""

FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
PATIENCE = 3
"""Tries after which an error that looks like a fault of our own is taken for one. Drivers raise
such errors too when a connection breaks at an odd moment."""

log = structlog.get_logger(__name__)


class Recorder:
    """Records results in the background, in the order in which they came.

    ``on_recorded`` is called after each commit with the group, what became of it, and the seconds
    that its transaction took; ``busy`` tells whether more results are to be expected soon.
    """

    def __init__(
        self,
        database: Database,
        clock: Clock,
        rules: HealthRules,
        *,
        busy: Callable[[], bool],
        on_recorded: Callable[[Sequence[Result], Recorded, float], None],
    ) -> None:
        self._database = database
        self._clock = clock
        self._rules = rules
        self._busy = busy
        self._on_recorded = on_recorded
        self._waiting: deque[Result] = deque()
        # Endpoints that were not well when last judged here. What was claimed before says nothing
        # of it, and a success in between must end a row of failures.
        self._unwell: set[str] = set()
        self._recording = 0
        self._arrived = asyncio.Event()
        self._enough = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def backlog(self) -> int:
        """Results that are not recorded yet."""
        return len(self._waiting) + self._recording

    def add(self, result: Result) -> None:
        """Hand over a result; never blocks."""
        self._waiting.append(result)
        self._idle.clear()
        self._arrived.set()
        if len(self._waiting) >= ENOUGH:
            self._enough.set()

    async def drained(self) -> None:
        """Wait until everything handed over has been recorded."""
        await self._idle.wait()

    async def run(self) -> None:
        """Record until cancelled."""
        while True:
            await self._arrived.wait()
            if self._busy():
                await self._gather()
            group = self._group()
            self._recording = len(group)
            await self._record(group)
            self._recording = 0
            if not self._waiting:
                self._arrived.clear()
                self._idle.set()

    async def _gather(self) -> None:
        """Wait until a transaction is worth while: its statements cost the same for one result
        as for a hundred."""
        self._enough.clear()
        if len(self._waiting) < ENOUGH:
            with suppress(TimeoutError):
                async with asyncio.timeout(GATHER_SECONDS):
                    await self._enough.wait()

    def _group(self) -> list[Result]:
        """The next results, at most one of each delivery: the fence tells them apart by id."""
        group: dict[str, Result] = {}
        held: list[Result] = []
        size = 0
        while self._waiting and len(group) < GROUP and size < GROUP_BYTES:
            result = self._waiting.popleft()
            if group.setdefault(result.claimed.delivery_id, result) is not result:
                held.append(result)
            elif result.attempt is not None:
                size += len(result.attempt["response_body"] or b"")
        self._waiting.extendleft(reversed(held))
        return list(group.values())

    async def _record(
        self, group: Sequence[Result], *, again: bool = False, bare: bool = False
    ) -> None:
        pause = FIRST_PAUSE
        for tries in count(1):
            mark = self._clock.monotonic()
            try:
                recorded = await self._database.write(
                    record,
                    group,
                    self._rules,
                    self._clock.now(),
                    again=again,
                    unwell=self._unwell,
                )
            except Exception as error:  # noqa: BLE001 - whatever it is, nothing may be lost
                if _is_refused(error) or (tries >= PATIENCE and _is_ours(error)):
                    await self._isolate(group, error, again=again, bare=bare)
                    return
                log.warning("record_failed", results=len(group), error=repr(error)[:300])
                again = True
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                self._tell(group, recorded, self._clock.monotonic() - mark)
                return

    async def _isolate(
        self, group: Sequence[Result], error: Exception, *, again: bool, bare: bool
    ) -> None:
        """Find the one result that can't be stored; it must not hold up the others."""
        if len(group) > 1:
            half = len(group) // 2
            await self._record(group[:half], again=again)
            await self._record(group[half:], again=again)
            return
        (result,) = group
        problem = {"delivery_id": result.claimed.delivery_id, "error": repr(error)[:300]}
        if bare:
            # Even the bare fact can't be stored. The lease will end and the claims be counted,
            # so the delivery ends as poison.
            log.error("record_refused", **problem)
            return
        log.error("result_refused", **problem)
        await self._record([_bare(result)], again=again, bare=True)

    def _tell(self, group: Sequence[Result], recorded: Recorded, took: float) -> None:
        for endpoint_id, pristine in recorded.pristine.items():
            (self._unwell.discard if pristine else self._unwell.add)(endpoint_id)
        try:
            self._on_recorded(group, recorded, took)
        except Exception as error:  # noqa: BLE001 - a log that can't be written stops no worker
            log.debug("on_recorded_failed", error=repr(error)[:300])


def _is_refused(error: Exception) -> bool:
    """Whether the database can't store a value, so that trying again would be in vain.

    Everything else says that it is away, busy or being changed, which passes.
    """
    if not isinstance(error, DBAPIError) or error.connection_invalidated:
        return False
    state = getattr(error.orig, "sqlstate", None)
    if state:
        return str(state)[:2] in VALUE_ERRORS
    # What asyncpg can't encode is an error without a state, caused by a ValueError.
    refusals = DataError | IntegrityError | ProgrammingError
    return isinstance(error, refusals) or isinstance(
        error.orig and error.orig.__cause__, ValueError
    )


def _is_ours(error: Exception) -> bool:
    """Whether an error looks like a fault of our own or a driver's that a result brings about."""
    if isinstance(error, StatementError) and not isinstance(error, DBAPIError):
        return isinstance(error.orig, FAULTS)
    return isinstance(error, FAULTS)


def _bare(result: Result) -> Result:
    """The result without anything that came from outside."""
    if result.attempt is None or result.outcome is None:
        return result
    attempt: dict[str, Any] = {
        **result.attempt,
        "error": "the result could not be stored as it was",
        "response_headers": "[]",
        "response_body": b"",
        "response_truncated": True,
    }
    if not result.outcome.delivered:
        attempt["kind"] = OutcomeKind.INTERNAL.value
    outcome = result.outcome._replace(kind=OutcomeKind(attempt["kind"]))
    return result._replace(attempt=attempt, outcome=outcome)
