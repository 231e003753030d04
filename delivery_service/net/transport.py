"""The transport: send one prepared request, get an outcome. Implemented on aiohttp.

Whatever a receiver does becomes an `Outcome`; nothing is raised for it.
"""

from __future__ import annotations

import asyncio
import io
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Protocol

import aiohttp
from yarl import URL

from delivery_service.net.aiohttp_failures import classify_aiohttp
from delivery_service.net.connector import DeliveryRequest, GuardedConnector
from delivery_service.net.failures import failed
from delivery_service.net.guard import GuardPolicy, check_url
from delivery_service.net.progress import PROGRESS, Progress
from delivery_service.net.resolver import CACHE_TTL, Lookup, Resolver
from delivery_service.net.responses import answered, kept_headers
from delivery_service.net.tls import TlsContexts, TlsSettings
from delivery_service.policy.outcome import Outcome

RESPONSE_CAP = 16_384
"""Bytes of a response body that are kept."""

KEEPALIVE_TIMEOUT = 4.0
"""Seconds a connection may be idle: below the 5 s after which Node, uvicorn and Apache close."""

MAX_CONNECTION_AGE = 60.0
"""Seconds after which even a busy connection is opened anew, so that changes of DNS are seen."""

CONNECT_TIMEOUT = 5.0
"""Seconds for one address to accept a connection, TLS handshake included, before the next."""

_URL_CACHE_SIZE = 10_000
_LARGE_BODY = 1_048_576

UNGUARDED = GuardPolicy(allowed_networks=(ip_network("0.0.0.0/0"), ip_network("::/0")))


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """One attempt, ready to send: a POST of ``body``, byte for byte.

    ``url`` as registered; the transport judges it again. ``headers`` are sent as they are.
    """

    url: str
    headers: Mapping[str, str]
    body: bytes
    tls: TlsSettings | None = None


class Transport(Protocol):
    """Sends prepared requests."""

    async def send(self, request: PreparedRequest, deadline: float) -> Outcome:
        """Send once and return what became of it.

        ``deadline`` is in seconds and covers everything: name, connection, TLS, headers and body.
        Never raises for anything that a receiver can do; cancellation passes through.
        """

    async def close(self) -> None:
        """Close all connections."""

    @property
    def connections_opened(self) -> int:
        """Connections opened so far."""

    @property
    def connections_reused(self) -> int:
        """Requests that went over a connection kept from an earlier one."""


class AiohttpTransport:
    """The transport of the worker.

    ``max_connections`` must not be below the number of requests in flight. ``response_cap`` is in
    bytes; ``keepalive_timeout``, ``max_connection_age``, ``connect_timeout``, ``dns_timeout`` and
    ``dns_cache_ttl`` (at most 30)
    are in seconds. ``lookup`` replaces the system's resolver, ``tls`` the context for endpoints
    without `TlsSettings`.

    ``proxy`` is the URL of an egress proxy, and the only way to have one: proxy variables of the
    environment are never read. With a proxy the guard judges URLs, literal addresses included, but
    names are resolved by the proxy, and which addresses they may lead to is the proxy's job.
    """

    def __init__(
        self,
        policy: GuardPolicy,
        *,
        max_connections: int = 1000,
        response_cap: int = RESPONSE_CAP,
        keepalive_timeout: float = KEEPALIVE_TIMEOUT,
        max_connection_age: float = MAX_CONNECTION_AGE,
        dns_cache_ttl: float = CACHE_TTL,
        connect_timeout: float = CONNECT_TIMEOUT,
        dns_timeout: float = 5.0,
        lookup: Lookup | None = None,
        tls: ssl.SSLContext | None = None,
        proxy: str | None = None,
    ) -> None:
        self._policy = policy
        self._max_connections = max_connections
        self._response_cap = response_cap
        self._keepalive_timeout = keepalive_timeout
        self._max_connection_age = max_connection_age
        self._connect_timeout = connect_timeout
        self._dns_timeout = dns_timeout
        self._dns_cache_ttl = dns_cache_ttl
        self._lookup = lookup
        self._contexts = TlsContexts(tls)
        self._proxy = proxy
        self._urls: dict[str, URL] = {}
        self._session: aiohttp.ClientSession | None = None
        self._connector: GuardedConnector | None = None
        self._opening = asyncio.Lock()

    @property
    def connections_opened(self) -> int:
        """Connections opened so far."""
        return self._connector.opened if self._connector else 0

    @property
    def connections_reused(self) -> int:
        """Requests that went over a connection kept from an earlier one."""
        return self._connector.reused if self._connector else 0

    async def send(self, request: PreparedRequest, deadline: float) -> Outcome:
        """See `Transport.send`."""
        started = time.monotonic()
        progress = Progress()
        PROGRESS.set(progress)
        answer = _Answer()
        failure: Exception | None = None
        try:
            async with asyncio.timeout(deadline):
                await self._exchange(request, answer)
        except Exception as exc:  # noqa: BLE001 whatever it is, it becomes an outcome
            failure = exc
        finally:
            if answer.response is not None and not answer.complete:
                answer.response.close()
        duration = time.monotonic() - started
        response = answer.response
        if response is None:
            assert failure is not None  # noqa: S101 there is an answer or a failure
            return failed(
                failure, progress.phase, classify_aiohttp, deadline=deadline, duration=duration
            )
        return answered(
            response.status,
            kept_headers(response.raw_headers),
            bytes(answer.body[: self._response_cap]),
            truncated=not answer.complete,
            duration=duration,
        )

    async def close(self) -> None:
        """Close all connections. The transport can't be used afterwards."""
        if self._session is not None:
            await self._session.close()

    async def _exchange(self, request: PreparedRequest, answer: _Answer) -> None:
        url = self._urls.get(request.url) or self._check(request.url)
        session = self._session or await self._open()
        tls = self._contexts.ready(request.tls) or await self._contexts.get(request.tls)
        # aiohttp warns of larger bytes; read in pieces they don't hold up the event loop either.
        data = request.body if len(request.body) <= _LARGE_BODY else io.BytesIO(request.body)
        response = await session.post(
            url, data=data, headers=request.headers, allow_redirects=False, ssl=tls
        )
        answer.response = response
        body, content = answer.body, response.content
        while len(body) <= self._response_cap:
            # Most answers are here in one piece: what is buffered needs no turn of the loop.
            body += content.read_nowait() if content.is_eof() else await content.readany()
            if content.at_eof():
                answer.complete = len(body) <= self._response_cap
                return

    def _check(self, text: str) -> URL:
        checked = check_url(text, self._policy)
        # Encoded: yarl must not touch what the receiver's owner registered (%27, %28, %2F).
        url = URL(checked.url, encoded=True)
        # The same text always gets the same verdict, as the policy never changes.
        if len(self._urls) >= _URL_CACHE_SIZE:
            self._urls.clear()
        self._urls[text] = url
        return url

    async def _open(self) -> aiohttp.ClientSession:
        async with self._opening:
            if self._session is None:
                # Connections to an egress proxy are the operator's choice and not judged.
                policy = UNGUARDED if self._proxy else self._policy
                self._connector = GuardedConnector(
                    policy,
                    Resolver(
                        policy,
                        lookup=self._lookup,
                        timeout=self._dns_timeout,
                        cache_ttl=self._dns_cache_ttl,
                    ),
                    limit=self._max_connections,
                    keepalive_timeout=self._keepalive_timeout,
                    max_age=self._max_connection_age,
                    tls=self._contexts.default,
                )
                self._session = aiohttp.ClientSession(
                    connector=self._connector,
                    request_class=DeliveryRequest,
                    cookie_jar=aiohttp.DummyCookieJar(),
                    auto_decompress=False,
                    trust_env=False,
                    read_bufsize=16_384,
                    # The deadline is ours; aiohttp's own total rounds up to whole seconds.
                    timeout=aiohttp.ClientTimeout(sock_connect=self._connect_timeout),
                    proxy=self._proxy,
                )
            return self._session


class _Answer:
    """What has arrived so far: kept when the deadline passes in the middle of a body."""

    __slots__ = ("body", "complete", "response")

    def __init__(self) -> None:
        self.response: aiohttp.ClientResponse | None = None
        self.body = bytearray()
        self.complete = False
