"""One operation that runs in synchronous and in asynchronous code alike."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Awaitable, Generator
from typing import Any, Generic, NamedTuple, TypeVar

from receiver.errors import GateError
from receiver.store import Steps

T = TypeVar("T")


class Pause(NamedTuple):
    """A step that waits for `seconds`, in the manner of whoever drives it."""

    seconds: float


class Call(Generic[T]):
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
                if isinstance(item, Pause):
                    time.sleep(item.seconds)
                elif isinstance(item, Call):
                    item = _outcome(steps, item)
                    continue
                elif isinstance(item, Awaitable):
                    item = steps.throw(_refuse(item))
                    continue
                item = steps.send(item)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

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
                    if isinstance(item, Pause):
                        await asyncio.sleep(item.seconds)
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


def _outcome(steps: Steps[Any], call: Call[Any]) -> Any:
    """Run a call that is a step of other steps, and go on with its result or its error."""
    try:
        result = call.run()
    except Exception as error:  # noqa: BLE001 - the steps handle it
        return steps.throw(error)
    return steps.send(result)


def _refuse(item: Awaitable[Any]) -> GateError:
    close = getattr(item, "close", None)
    if close is not None:
        close()
    return GateError("the store's client is asynchronous: await the call instead of .run()")
