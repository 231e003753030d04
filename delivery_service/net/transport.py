"""The transport: send one prepared request, get an outcome. Implemented on aiohttp.

Whatever a receiver does becomes an `Outcome`; nothing is raised for it.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from ipaddress import ip_network
from typing import NamedTuple, Protocol

from yarl import URL

from delivery_service.net.aiohttp_failures import classify_aiohttp
from delivery_service.net.connector import GuardedConnector
from delivery_service.net.deadlines import Deadlines
from delivery_service.net.exchange import Answer, Route, exchange
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

_ROUTES = 10_000
"""URLs for which the way is kept, about 2 kB each."""

UNGUARDED = GuardPolicy(allowed_networks=(ip_network("0.0.0.0/0"), ip_network("::/0")))


class PreparedRequest(NamedTuple):
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
        self._proxy = None if proxy is None else URL(proxy)
        self._routes: dict[tuple[str, TlsSettings | None], Route] = {}
        self._connector: GuardedConnector | None = None
        self._deadlines = Deadlines()

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
        answer = Answer(self._response_cap)
        failure: Exception | None = None
        try:
            with self._deadlines.within(deadline):
                route = self._routes.get((request.url, request.tls)) or await self._route(request)
                await exchange(
                    self._connector or self._open(), route, request.headers, request.body, answer
                )
        except Exception as exc:  # noqa: BLE001 whatever it is, it becomes an outcome
            failure = exc
        duration = time.monotonic() - started
        if answer.status is None:
            assert failure is not None  # noqa: S101 there is an answer or a failure
            return failed(
                failure, progress.phase, classify_aiohttp, deadline=deadline, duration=duration
            )
        return answered(
            answer.status,
            kept_headers(answer.headers),
            bytes(answer.body[: self._response_cap]),
            truncated=not answer.complete,
            duration=duration,
        )

    async def close(self) -> None:
        """Close all connections. The transport can't be used afterwards."""
        if self._connector is not None:
            await self._connector.close()

    async def _route(self, request: PreparedRequest) -> Route:
        checked = check_url(request.url, self._policy)
        # Encoded: yarl must not touch what the receiver's owner registered (%27, %28, %2F).
        url = URL(checked.url, encoded=True)
        route = Route.to(url, await self._contexts.get(request.tls), self._proxy)
        # The same text always gets the same verdict, as the policy never changes.
        if len(self._routes) >= _ROUTES:
            self._routes.clear()
        self._routes[request.url, request.tls] = route
        return route

    def _open(self) -> GuardedConnector:
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
            connect_timeout=self._connect_timeout,
            tls=self._contexts.default,
        )
        return self._connector
