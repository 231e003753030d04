"""The two ways of doing the steps of a flow that is written once: synchronous and asynchronous.

A flow is a generator. It yields a `Call` of a gate or one of the steps below and is sent the
result, or thrown the error.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

from receiver.call import Call

__all__ = ["AnyContext", "Enter", "Handle", "Leave", "Steps", "drive", "drive_async", "is_async"]

T = TypeVar("T")
Steps: TypeAlias = Generator[Any, Any, T]
AnyContext: TypeAlias = Any
"""A context manager, of either kind, as the application made it."""


@dataclass(frozen=True, slots=True)
class Handle:
    """Run the handler."""

    call: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Enter:
    """Begin a transaction; gives what the context manager gives."""

    context: AnyContext


@dataclass(frozen=True, slots=True)
class Leave:
    """Commit a transaction or, for an error, roll it back."""

    context: AnyContext
    error: BaseException | None = None

    @property
    def details(self) -> tuple[Any, Any, Any]:
        """What a context manager is told at its end."""
        if self.error is None:
            return None, None, None
        return type(self.error), self.error, self.error.__traceback__


def drive(steps: Steps[T]) -> T:
    """Do the steps of a flow in synchronous code, and return its result."""
    result: Any = None
    error: BaseException | None = None
    while True:
        try:
            step = steps.send(result) if error is None else steps.throw(error)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        result, error = None, None
        try:
            result = _do(step)
        except BaseException as raised:  # noqa: BLE001 - the flow decides what it means
            error = raised


async def drive_async(steps: Steps[T], *, threaded: bool) -> T:
    """Do the steps of a flow in asynchronous code; `threaded` runs its handler in a thread."""
    result: Any = None
    error: BaseException | None = None
    while True:
        try:
            step = steps.send(result) if error is None else steps.throw(error)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        result, error = None, None
        try:
            result = await _do_async(step, threaded=threaded)
        except BaseException as raised:  # noqa: BLE001 - the flow decides what it means
            error = raised


def is_async(handler: Callable[..., object]) -> bool:
    """Whether calling `handler` gives a coroutine: an async function, method or object."""
    if isinstance(handler, partial):
        return is_async(handler.func)
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(type(handler), "__call__", None)  # noqa: B004 - an object's own method
    )


def _do(step: Any) -> Any:
    match step:
        case Call():
            return step.run()
        case Handle(call):
            return call()
        case Enter(context):
            return context.__enter__()
        case Leave(context):
            context.__exit__(*step.details)
            return None


async def _do_async(step: Any, *, threaded: bool) -> Any:
    match step:
        case Call():
            return await step
        case Handle(call):
            return await (asyncio.to_thread(call) if threaded else call())
        case Enter(context):
            return await context.__aenter__()
        case Leave(context):
            await context.__aexit__(*step.details)
            return None
