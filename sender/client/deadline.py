"""A total deadline for blocking HTTP.

httpx limits each read of a socket, not their sum: an answer that drips in, one byte at a time,
never trips its time-out (encode/httpx#1450). Here every socket operation gets what is left of the
time of the whole try. Asynchronous code needs none of this: a cancelled task stops anywhere.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import httpcore
import httpx

CHUNK = 64 * 1024
_end: ContextVar[float | None] = ContextVar("surehook_client_deadline", default=None)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Limit all socket operations of this block to ``seconds`` in sum."""
    token = _end.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _end.reset(token)


def is_over() -> bool:
    """Whether the time of the block is over."""
    end = _end.get()
    return end is not None and time.monotonic() >= end


def _left(timeout: float | None) -> float | None:
    end = _end.get()
    if end is None:
        return timeout
    left = end - time.monotonic()
    return left if timeout is None else min(left, timeout)


def heed(client: httpx.Client) -> None:
    """Make a client's sockets heed the deadline, those to proxies, too."""
    # httpx has no argument for it; tests/sender/test_client_service.py sees that it works.
    for transport in (client._transport, *client._mounts.values()):  # noqa: SLF001
        pool = getattr(transport, "_pool", None)
        if isinstance(pool, httpcore.ConnectionPool):
            pool._network_backend = _Backend(pool._network_backend)  # noqa: SLF001


class _Backend(httpcore.NetworkBackend):
    def __init__(self, inner: httpcore.NetworkBackend) -> None:
        self._inner = inner

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """Connect as the usual backend does."""
        timeout = _checked(timeout, httpcore.ConnectTimeout)
        return _Stream(self._inner.connect_tcp(host, port, timeout, local_address, socket_options))

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.NetworkStream:
        """Connect as the usual backend does."""
        timeout = _checked(timeout, httpcore.ConnectTimeout)
        return _Stream(self._inner.connect_unix_socket(path, timeout, socket_options))

    def sleep(self, seconds: float) -> None:
        """Sleep."""
        self._inner.sleep(seconds)


class _Stream(httpcore.NetworkStream):
    def __init__(self, inner: httpcore.NetworkStream) -> None:
        self._inner = inner

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Read within the time that is left."""
        return self._inner.read(max_bytes, _checked(timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write within the time that is left, by parts since each part has a limit of its own."""
        for at in range(0, len(buffer), CHUNK):
            left = _checked(timeout, httpcore.WriteTimeout)
            self._inner.write(buffer[at : at + CHUNK], left)

    def close(self) -> None:
        """Close the socket."""
        self._inner.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        """Do the handshake within the time that is left."""
        left = _checked(timeout, httpcore.ConnectTimeout)
        return _Stream(self._inner.start_tls(ssl_context, server_hostname, left))

    def get_extra_info(self, info: str) -> Any:
        """As the usual stream."""
        return self._inner.get_extra_info(info)


def _checked(timeout: float | None, error: type[Exception]) -> float | None:
    left = _left(timeout)
    if left is not None and left <= 0:
        raise error("the time for this request is over")
    return left
