"""One request and its answer over a connection of aiohttp's.

Pool, guard, TLS, proxies and the parser of answers are aiohttp's. Its session is left out: what it
prepares for each request (URL, headers, cookies, redirects, timers, a task that writes the body) is
the same for all requests to one endpoint, and was two thirds of the cost of an attempt
(docs/decisions/0013-exchange.md has the figures).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from aiohttp import ClientRequest, ConnectionTimeoutError, encode_basic_auth, hdrs
from aiohttp.client_reqrep import ConnectionKey
from yarl import URL

from delivery_service.net.connector import GuardedConnector
from wire.errors import HeaderError

_SWITCHING_PROTOCOLS = 101
_DEFAULTS = (("accept-encoding", "identity"), ("accept", "*/*"))


class Destination(ClientRequest):
    """Where a connection leads, in the shape that a connector asks for."""

    _key: ConnectionKey | None = None

    @property
    def connection_key(self) -> ConnectionKey:
        """The pool's key, which is made once."""
        if self._key is None:
            self._key = super().connection_key
        return self._key


@dataclass(frozen=True, slots=True)
class Route:
    """What all requests to one URL have in common: where to, and how they begin."""

    destination: Destination
    start: str

    @classmethod
    def to(cls, url: URL, tls: ssl.SSLContext, proxy: URL | None = None) -> Self:
        """The route to ``url``, through ``proxy`` if there is one. Needs a running loop."""
        destination = Destination(
            "POST", url, loop=asyncio.get_running_loop(), ssl=tls, proxy=proxy
        )
        by_proxy = proxy is not None and not destination.is_ssl()
        # Absolute form towards a proxy, origin form otherwise (RFC 9112, section 3.2).
        target = str(destination.url) if by_proxy else destination.url.raw_path_qs
        start = f"POST {target} HTTP/1.1\nhost: {destination.headers[hdrs.HOST]}"
        if proxy is not None and by_proxy and proxy.user is not None:
            login = encode_basic_auth(proxy.user, proxy.password or "")
            start += f"\nproxy-authorization: {login}"
        return cls(destination, start)

    def head(self, headers: Mapping[str, str], length: int) -> bytes:
        """The head of a request with ``headers`` and a body of ``length`` bytes.

        Raises:
            HeaderError: A header would break out of its line, or is not ASCII.
        """
        lines = [self.start, *[f"{name}: {value}" for name, value in headers.items()]]
        # A compressed answer is never invited.
        lines += [f"{name}: {value}" for name, value in _DEFAULTS if name not in headers]
        lines.append(f"content-length: {length}\n\n")
        text = "\n".join(lines)
        # Between the lines, in the start, and two at the end.
        expected = len(lines) - 1 + self.start.count("\n") + 2
        if text.count("\n") != expected or "\r" in text or "\0" in text:
            raise HeaderError("a header has line breaks or NUL in its name or value")
        return text.replace("\n", "\r\n").encode("ascii")


class Answer:
    """What has arrived so far: kept when the deadline passes in the middle of a body.

    ``cap``: bytes of the body that are wanted; one more may be read. ``status`` is None before the
    head is there.
    """

    __slots__ = ("body", "cap", "complete", "headers", "status")

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self.status: int | None = None
        self.headers: tuple[tuple[bytes, bytes], ...] = ()
        self.body = bytearray()
        self.complete = False


async def exchange(
    connector: GuardedConnector,
    route: Route,
    headers: Mapping[str, str],
    body: bytes,
    answer: Answer,
) -> None:
    """Send one request and read what comes back into ``answer``.

    Raises what connector and parser raise. The connection is kept for the next request if the
    answer was read to its end, and closed otherwise.
    """
    head = route.head(headers, len(body))
    try:
        connection = await connector.connect(route.destination, [], connector.timeout)
    except TimeoutError as error:
        raise ConnectionTimeoutError from error
    try:
        protocol, transport = connection.protocol, connection.transport
        assert protocol is not None  # noqa: S101 it was given a moment ago
        # Where the receiver has hung up already, reading says how.
        if transport is not None:
            transport.write(head + body)
        message, content = await protocol.read()
        while message.code < 200 and message.code != _SWITCHING_PROTOCOLS:
            message, content = await protocol.read()
        answer.status, answer.headers = message.code, message.raw_headers
        while len(answer.body) <= answer.cap:
            # Most answers are here in one piece: what is buffered needs no turn of the loop.
            answer.body += content.read_nowait() if content.is_eof() else await content.readany()
            if content.at_eof():
                answer.complete = len(answer.body) <= answer.cap
                break
    finally:
        if answer.complete:
            connection.release()
        else:
            connection.close()
