"""Both clients, called alike, with a clock that only their own pauses move."""

from __future__ import annotations

import inspect
import ssl
from typing import Any

from sender import AsyncClient, Client

BASE_URL = "http://hooks.test"
KEY = "shk_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG"
START = 1_796_000_000.0
TLS = ssl.create_default_context()
"""Shared, since loading the authorities takes longer than most tests."""


class Caller:
    """A client of either kind. ``pauses`` are the seconds that it has waited between tries."""

    def __init__(self, kind: str, base_url: str = BASE_URL, key: str = KEY, **options: Any) -> None:
        self.pauses: list[float] = []
        self.passed = 0.0
        options = {"clock": lambda: self.passed, "wall_clock": lambda: START, **options}
        options = {"chance": lambda: 1.0, "verify": TLS, **options}
        if kind == "sync":
            self.client: Any = Client(base_url, key, sleep=self._pause, **options)
        else:
            self.client = AsyncClient(base_url, key, sleep=self._pause_async, **options)

    def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.passed += seconds

    async def _pause_async(self, seconds: float) -> None:
        self._pause(seconds)

    async def __call__(self, operation: str, *args: Any, **kwargs: Any) -> Any:
        """Do an operation and return its result."""
        done = getattr(self.client, operation)(*args, **kwargs)
        return await done if inspect.isawaitable(done) else done

    async def all(self, listing: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Return all items of a list."""
        return await collected(getattr(self.client, listing)(*args, **kwargs))

    async def close(self) -> None:
        closing = getattr(self.client, "aclose", None) or self.client.close
        done = closing()
        if inspect.isawaitable(done):
            await done


async def collected(items: Any) -> list[Any]:
    """The items of an iterable of either kind."""
    if hasattr(items, "__aiter__"):
        return [item async for item in items]
    return list(items)
