"""aiohttp's connector, under the guard.

Facts of aiohttp 3.14 that this module rests on, each held by a test: a connector asks its resolver
for names only, so literal addresses are judged in the socket factory, through which every
connection passes; the pool's key is scheme, name, port and TLS context, so two names never share a
connection, whatever they resolve to; a POST is never sent again after a stale connection.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
import time
from typing import TYPE_CHECKING, Any

from aiohttp import ClientPayloadError, ClientRequest, ClientTimeout, TCPConnector
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import RawResponseMessage
from aiohttp.streams import StreamReader

from delivery_service.net.guard import GuardPolicy, check_address
from delivery_service.net.progress import PROGRESS, Phase
from delivery_service.net.resolver import Resolver

if TYPE_CHECKING:
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

READ_SIZE = 16_384
"""Bytes of an answer that wait to be read before the receiver has to."""

MAX_INFORMATIONAL = 16
"""Answers 1xx that are skipped before an answer counts as a flood."""


class DeliveryHandler(ResponseHandler):
    """A connection's protocol that hostile receivers can't hold on to."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.opened_at = time.monotonic()
        self.used = False
        self.begin()

    def begin(self) -> None:
        """Expect a new answer."""
        self._informational = 0
        self._answered = False

    def close(self) -> None:
        """Close at once: a graceful close waits for a peer that may never read or answer."""
        self.abort()

    def data_received(self, data: bytes) -> None:
        """Parse head and body apart.

        aiohttp's parser drops a complete head if the body behind it, in the same piece of data, is
        malformed. The status decides, so it must not depend on how the network cut the answer.
        """
        while not self._answered and 3 < (end := data.find(b"\r\n\r\n") + 4) < len(data):
            super().data_received(data[:end])
            if self._exception is not None:
                return
            data = data[end:]
        super().data_received(data)

    def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
        """Fail the answer, and its body too, which aiohttp would leave waiting for more data."""
        super().set_exception(exc, *cause)
        body = self._payload
        if isinstance(exc, HttpProcessingError) and body is not None and not body.is_eof():
            body.set_exception(ClientPayloadError(exc.message))

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        """Pass a parsed answer on, unless it is one 1xx too many."""
        code = data[0].code
        if code < 200 and code != 101:
            self._informational += 1
            if self._informational > MAX_INFORMATIONAL:
                if self._exception is None:
                    message = f"more than {MAX_INFORMATIONAL} answers with a status below 200"
                    self.set_exception(HttpProcessingError(code=code, message=message))
                    if self.transport is not None:
                        self.transport.abort()
                return
        else:
            self._answered = True
        super().feed_data(data, size)


class _ConnectorResolver(AbstractResolver):
    """Our resolver in aiohttp's shape."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_INET,
    ) -> list[ResolveResult]:
        progress = PROGRESS.get()
        after = progress.phase
        progress.phase = Phase.RESOLVING
        addresses = await self._resolver.resolve(host)
        progress.phase = after
        return [
            ResolveResult(
                hostname=host,
                host=str(address),
                port=port,
                family=socket.AF_INET if address.version == 4 else socket.AF_INET6,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for address in addresses
        ]

    async def close(self) -> None:
        await self._resolver.close()


class GuardedConnector(TCPConnector):
    """Opens connections to checked addresses only, and counts them.

    A connection stays with the address it was opened to. ``keepalive_timeout`` (seconds idle) and
    ``max_age`` (seconds since opening) limit how long it is used; ``connect_timeout`` is in seconds
    for each address.
    """

    def __init__(
        self,
        policy: GuardPolicy,
        resolver: Resolver,
        *,
        limit: int,
        keepalive_timeout: float,
        max_age: float,
        connect_timeout: float,
        tls: ssl.SSLContext,
    ) -> None:
        super().__init__(
            resolver=_ConnectorResolver(resolver),
            use_dns_cache=False,
            limit=limit,
            keepalive_timeout=keepalive_timeout,
            ssl=tls,
            socket_factory=self._open_socket,
        )
        factory: Any = functools.partial(DeliveryHandler, loop=self._loop)
        self._factory = factory
        self._policy = policy
        self._max_age = max_age
        # What has to be done in time altogether is up to the caller.
        self.timeout = ClientTimeout(sock_connect=connect_timeout)
        self.opened = 0
        self.reused = 0

    async def connect(
        self,
        req: ClientRequest,
        traces: list[Trace],
        timeout: ClientTimeout,  # noqa: ASYNC109 aiohttp's
    ) -> Connection:
        """Return a connection from the pool or a new one, and note that writing begins."""
        progress = PROGRESS.get()
        progress.phase = Phase.QUEUED
        connection = await super().connect(req, traces, timeout)
        handler = self._handler(connection)
        # An answer that nobody asked for must not become that of the next request.
        while handler.used and (
            handler.should_close or time.monotonic() - handler.opened_at > self._max_age
        ):
            connection.close()
            connection = await super().connect(req, traces, timeout)
            handler = self._handler(connection)
        if handler.used:
            self.reused += 1
        else:
            self.opened += 1
            handler.used = True
            # One parser reads all answers of a connection, as they follow each other.
            handler.set_response_params(
                read_until_eof=True, auto_decompress=False, read_bufsize=READ_SIZE
            )
        handler.begin()
        progress.phase = Phase.ANSWER
        return connection

    @staticmethod
    def _handler(connection: Connection) -> DeliveryHandler:
        handler = connection.protocol
        assert isinstance(handler, DeliveryHandler)  # noqa: S101 what our factory makes
        return handler

    async def _create_connection(
        self,
        req: ClientRequest,
        traces: list[Trace],
        timeout: ClientTimeout,  # noqa: ASYNC109 aiohttp's
    ) -> ResponseHandler:
        PROGRESS.get().phase = Phase.HANDSHAKE if req.is_ssl() else Phase.CONNECTING
        return await super()._create_connection(req, traces, timeout)

    def _open_socket(self, info: tuple[Any, ...]) -> socket.socket:
        """Judge the address once more, at the last moment, and make the socket for it."""
        family, kind, protocol, _, address = info
        check_address(address[0], self._policy)
        return socket.socket(family, kind, protocol)
