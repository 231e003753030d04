"""One operation that runs in synchronous and in asynchronous code alike."""

from __future__ import annotations

import asyncio
import time
import warnings
from abc import abstractmethod
from collections.abc import Awaitable, Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from receiver.errors import GateError
from receiver.store import Steps

T = TypeVar("T")


class Step:
    """What a store's or a flow's steps may yield: something that can be done in either manner."""

    __slots__ = ()

    @abstractmethod
    def do(self) -> Any:
        """Do it in synchronous code and return its result."""

    async def do_async(self) -> Any:
        """Do it on an event loop and return its result."""
        return self.do()


@dataclass(frozen=True, slots=True)
class Pause(Step):
    """A step that waits for `seconds`."""

    seconds: float

    def do(self) -> None:
        """Sleep."""
        time.sleep(self.seconds)

    async def do_async(self) -> None:
        """Sleep."""
        await asyncio.sleep(self.seconds)


class Call(Step, Generic[T]):
    """One operation of a gate, not yet started: ``.run()`` it, or ``await`` it. Once.

    Awaiting a call of a store with a blocking client runs it in a thread, so that the event loop
    stays free. A call that is dropped without either gives a `RuntimeWarning`, as a coroutine
    does.
    """

    __slots__ = ("_blocking", "_steps")

    def __init__(self, steps: Steps[T], *, blocking: bool) -> None:
        self._steps: Steps[T] | None = steps
        self._blocking = blocking

    def _start(self) -> Steps[T]:
        steps, self._steps = self._steps, None
        if steps is None:
            raise GateError("this call has run already: make a new one with the gate's method")
        return steps

    def run(self) -> T:
        """Do it now and return the result.

        Raises `GateError` when the store's client is asynchronous, and what the client raises.
        """
        steps = self._start()
        try:
            item = next(steps)
            while True:
                if isinstance(item, Step):
                    item = _done(steps, item)
                elif isinstance(item, Awaitable):
                    item = steps.throw(refused(item))
                else:
                    item = steps.send(item)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    def do(self) -> T:
        """See `run`."""
        return self.run()

    async def do_async(self) -> T:
        """Await it."""
        return await self

    def __await__(self) -> Generator[Any, Any, T]:
        return self._drive().__await__()

    async def _drive(self) -> T:
        if self._blocking:
            return await asyncio.to_thread(self.run)
        steps = self._start()
        try:
            item = next(steps)
            while True:
                try:
                    if isinstance(item, Step):
                        item = await item.do_async()
                    elif isinstance(item, Awaitable):
                        item = await item
                except BaseException as error:  # noqa: BLE001 - the store's own steps handle it
                    item = steps.throw(error)
                else:
                    item = steps.send(item)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    def __del__(self) -> None:
        steps = getattr(self, "_steps", None)
        if steps is not None:
            steps.close()
            warnings.warn(
                "a call of a gate was never run: add .run(), or await it",
                RuntimeWarning,
                stacklevel=2,
            )


def _done(steps: Steps[Any], step: Step) -> Any:
    """Do a step, and go on with its result or its error."""
    result, failed = None, None
    try:
        result = step.do()
    except BaseException as error:  # noqa: BLE001 - the steps handle it
        failed = error
    return steps.send(result) if failed is None else steps.throw(failed)


def refused(item: Awaitable[Any]) -> GateError:
    """The error of something asynchronous in synchronous code."""
    close = getattr(item, "close", None)
    if close is not None:
        close()
    return GateError("this is asynchronous: await the call instead of .run()")
