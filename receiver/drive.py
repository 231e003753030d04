"""The steps of a flow around a handler: run it, and begin and end its transaction.

A flow is written once, as a generator, for synchronous and asynchronous code. It yields a `Call` of
a gate or one of the steps below, is sent the result or thrown the error, and is run as a `Call`
itself.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from receiver.call import Step, refused
from receiver.errors import GateError

__all__ = ["AnyContext", "Enter", "Handle", "Leave", "is_async"]

AnyContext: TypeAlias = Any
"""A context manager, of either kind, as the application made it."""


@dataclass(frozen=True, slots=True)
class Handle(Step):
    """Run the handler; on an event loop in a thread, if it is `threaded`."""

    call: Callable[[], Any]
    threaded: bool = False

    def do(self) -> Any:
        """Call it. Raises `GateError` when that gives something to await."""
        result = self.call()
        if inspect.isawaitable(result):
            raise refused(result)
        return result

    async def do_async(self) -> Any:
        """Call it, and await what that gives."""
        result = await asyncio.to_thread(self.call) if self.threaded else self.call()
        return await result if inspect.isawaitable(result) else result


@dataclass(frozen=True, slots=True)
class Enter(Step):
    """Begin a transaction; gives what the context manager gives."""

    context: AnyContext

    def do(self) -> Any:
        """Begin. Raises `GateError` for an asynchronous transaction."""
        if not hasattr(self.context, "__enter__"):
            raise GateError("transaction is asynchronous: await the call, in an async view")
        return self.context.__enter__()

    async def do_async(self) -> Any:
        """Begin one of either kind."""
        if hasattr(self.context, "__aenter__"):
            return await self.context.__aenter__()
        return self.do()


@dataclass(frozen=True, slots=True)
class Leave(Step):
    """Commit a transaction or, for an error, roll it back."""

    context: AnyContext
    error: BaseException | None = None

    def do(self) -> None:
        """End it."""
        self.context.__exit__(*self._details)

    async def do_async(self) -> None:
        """End one of either kind."""
        if hasattr(self.context, "__aexit__"):
            await self.context.__aexit__(*self._details)
        else:
            self.do()

    @property
    def _details(self) -> tuple[Any, Any, Any]:
        """What a context manager is told at its end."""
        if self.error is None:
            return None, None, None
        return type(self.error), self.error, self.error.__traceback__


def is_async(handler: Callable[..., object]) -> bool:
    """Whether calling `handler` gives a coroutine: an async function, method or object."""
    if isinstance(handler, partial):
        return is_async(handler.func)
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(type(handler), "__call__", None)  # noqa: B004 - an object's own method
    )
