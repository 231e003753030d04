"""Names to checked addresses, with a time limit of their own.

Look-ups run on threads made for them: the event loop's default pool, and uvloop's four libuv
threads, would be used up by a few slow names. The threads are daemons, so a look-up that hangs
never delays the end of the process.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from ipaddress import ip_address

from delivery_service.net.addresses import IPAddress
from delivery_service.net.guard import GuardPolicy, check_address
from wire.errors import SurehookError

Lookup = Callable[[str], Awaitable[Sequence[str]]]
"""An async function from a name to its addresses as text; raises OSError if there are none."""

CACHE_TTL = 10.0
"""Seconds that checked addresses are used again. Only successful, fully checked answers are."""

_CACHE_SIZE = 10_000


class ResolutionError(SurehookError):
    """A name has no address, or none was found in time."""


class ThreadedLookup:
    """``getaddrinfo`` on daemon threads, at most ``max_threads`` at once."""

    def __init__(self, max_threads: int = 128) -> None:
        self._slots = asyncio.Semaphore(max_threads)

    async def __call__(self, host: str) -> list[str]:
        """Return the addresses of ``host``; raises OSError or UnicodeError."""
        # The slot belongs to the thread, not to the waiter, who may have given up long before.
        await self._slots.acquire()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[str]] = loop.create_future()

        def settle(answer: list[str] | None, error: Exception | None) -> None:
            self._slots.release()
            if future.done():
                return
            if error is None:
                future.set_result(answer or [])
            else:
                future.set_exception(error)

        def look_up() -> None:
            answer: list[str] | None = None
            error: Exception | None = None
            try:
                answer = _getaddrinfo(host)
            except (OSError, UnicodeError) as exc:
                error = exc
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(settle, answer, error)

        threading.Thread(target=look_up, name=f"lookup-{host}", daemon=True).start()
        return await future


def _getaddrinfo(host: str) -> list[str]:
    infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    addresses: list[str] = []
    for _, _, _, _, answer in infos:
        sockaddr: tuple[object, ...] = answer
        address = str(sockaddr[0])
        if len(sockaddr) == 4 and sockaddr[3] and "%" not in address:
            address = f"{address}%{sockaddr[3]}"
        addresses.append(address)
    return addresses


class Resolver:
    """Resolves names to addresses that the guard has checked.

    ``timeout`` is in seconds and limits each look-up; the attempt's deadline applies besides.
    ``cache_ttl`` is in seconds, at most 30. One look-up serves everybody who asks for the same name
    at the same time.
    """

    def __init__(
        self,
        policy: GuardPolicy,
        *,
        lookup: Lookup | None = None,
        timeout: float = 5.0,
        cache_ttl: float = CACHE_TTL,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 <= cache_ttl <= 30:
            raise ValueError("cache_ttl must be between 0 and 30 seconds")
        self._policy = policy
        self._lookup: Lookup = lookup or ThreadedLookup()
        self._timeout = timeout
        self._cache_ttl = cache_ttl
        self._monotonic = monotonic
        self._cache: dict[str, tuple[float, tuple[IPAddress, ...]]] = {}
        self._pending: dict[str, asyncio.Task[tuple[IPAddress, ...]]] = {}

    async def resolve(self, host: str) -> tuple[IPAddress, ...]:
        """Return the addresses of ``host``, all of them checked, in the resolver's order.

        An address is its own answer.
        Raises ``BlockedUrl`` if any of them is refused and ``ResolutionError`` if there is none or
        the time is up.
        """
        with suppress(ValueError):
            return (check_address(ip_address(host), self._policy),)
        cached = self._cache.get(host)
        if cached is not None:
            if self._monotonic() < cached[0]:
                return cached[1]
            del self._cache[host]
        task = self._pending.get(host)
        if task is None:
            task = asyncio.create_task(self._resolve(host), name=f"resolve-{host}")
            self._pending[host] = task
            task.add_done_callback(lambda done: self._finished(host, done))
        # Shielded: whoever gives up must not take the look-up away from the others.
        return await asyncio.shield(task)

    async def _resolve(self, host: str) -> tuple[IPAddress, ...]:
        try:
            async with asyncio.timeout(self._timeout):
                answers = await self._lookup(host)
        except TimeoutError:
            raise ResolutionError(
                f"the name {host} did not resolve within {self._timeout:g} s"
            ) from None
        except (OSError, UnicodeError) as exc:
            reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
            raise ResolutionError(f"the name {host} does not resolve: {reason}") from exc
        if not answers:
            raise ResolutionError(f"the name {host} has no address")
        checked = tuple(dict.fromkeys(check_address(answer, self._policy) for answer in answers))
        if self._cache_ttl:
            if len(self._cache) >= _CACHE_SIZE:
                self._cache.clear()
            self._cache[host] = (self._monotonic() + self._cache_ttl, checked)
        return checked

    def _finished(self, host: str, task: asyncio.Task[tuple[IPAddress, ...]]) -> None:
        self._pending.pop(host, None)
        if not task.cancelled():
            # Seen here, so that asyncio doesn't report it when everybody has given up waiting.
            task.exception()

    async def close(self) -> None:
        """Stop waiting for look-ups that are still running."""
        tasks = list(self._pending.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
