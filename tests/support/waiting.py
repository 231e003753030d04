"""Wait for a condition with a deadline; never for a fixed time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")

DEADLINE = 20.0
INTERVAL = 0.01


class ConditionNotMetError(AssertionError):
    """The deadline passed; the message says what was waited for and what was seen last."""


def wait_until(
    predicate: Callable[[], T], *, deadline: float = DEADLINE, what: str | None = None
) -> T:
    """Call ``predicate`` until it returns something true, and return that.

    ``deadline`` is in seconds. ``what`` describes the condition in the failure message; left out,
    the predicate's source line does. An exception of the predicate ends the wait.
    """
    end = time.monotonic() + deadline
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() >= end:
            raise _failure(predicate, what, deadline, value)
        time.sleep(INTERVAL)


async def wait_until_async(
    predicate: Callable[[], T | Awaitable[T]],
    *,
    deadline: float = DEADLINE,
    what: str | None = None,
) -> T:
    """As ``wait_until``, without blocking the event loop. ``predicate`` may be a coroutine."""
    end = time.monotonic() + deadline
    while True:
        answer = predicate()
        value: T = await answer if inspect.isawaitable(answer) else answer
        if value:
            return value
        if time.monotonic() >= end:
            raise _failure(predicate, what, deadline, value)
        await asyncio.sleep(INTERVAL)


def _failure(
    predicate: Callable[..., Any], what: str | None, deadline: float, last: object
) -> ConditionNotMetError:
    if what is None:
        try:
            what = " ".join(inspect.getsource(predicate).split())
        except (OSError, TypeError):
            what = repr(predicate)
    return ConditionNotMetError(f"not within {deadline:g} s: {what} (last seen: {last!r})")
