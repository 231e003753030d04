"""The same transport on httpx, for those who need its proxies or mounts. Several times slower.

The guard sits in httpcore's network backend: names are resolved by our resolver and connections are
opened to checked addresses, while Host, SNI and verification stay the name's.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterable, Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpcore
import httpx

from delivery_service.net.failures import (
    HUNG_UP,
    NO_CONNECTION,
    PROXY_UNREACHABLE,
    Verdict,
    connection_verdict,
    failed,
    tls_reason,
)
from delivery_service.net.guard import BlockedUrl, CheckedUrl, GuardPolicy, check_url
from delivery_service.net.progress import PROGRESS, Phase, Progress
from delivery_service.net.resolver import CACHE_TTL, Lookup, Resolver
from delivery_service.net.responses import answered, kept_headers
from delivery_service.net.tls import TlsContexts, TlsSettings
from delivery_service.net.transport import (
    CONNECT_TIMEOUT,
    KEEPALIVE_TIMEOUT,
    RESPONSE_CAP,
    UNGUARDED,
    PreparedRequest,
)
from delivery_service.policy.outcome import Outcome, OutcomeKind

HEAD_BUDGET = 262_144
"""Bytes that may come before the body, above the body's cap: the end of any flood of 1xx."""

_CLIENTS_SIZE = 100


class HttpxTransport:
    """A `Transport` on httpx; parameters as those of `AiohttpTransport`.

    ``mounts`` are httpx's: URL patterns and transports to use for them. A transport of yours opens
    its own connections: then the guard judges URLs only, as it does with ``proxy``.
    """

    def __init__(
        self,
        policy: GuardPolicy,
        *,
        max_connections: int = 1000,
        response_cap: int = RESPONSE_CAP,
        keepalive_timeout: float = KEEPALIVE_TIMEOUT,
        connect_timeout: float = CONNECT_TIMEOUT,
        dns_timeout: float = 5.0,
        dns_cache_ttl: float = CACHE_TTL,
        lookup: Lookup | None = None,
        tls: ssl.SSLContext | None = None,
        proxy: str | None = None,
        mounts: Mapping[str, httpx.AsyncBaseTransport | None] | None = None,
    ) -> None:
        self._policy = policy
        self._response_cap = response_cap
        self._limits = httpx.Limits(
            max_connections=max_connections,
            max_keepalive_connections=max_connections,
            keepalive_expiry=keepalive_timeout,
        )
        connection_policy = UNGUARDED if proxy else policy
        self._resolver = Resolver(
            connection_policy, lookup=lookup, timeout=dns_timeout, cache_ttl=dns_cache_ttl
        )
        self._backend = GuardedBackend(
            self._resolver, connect_timeout=connect_timeout, read_budget=response_cap + HEAD_BUDGET
        )
        self._contexts = TlsContexts(tls)
        self._proxy = proxy
        self._direct = proxy is None and not mounts
        self._mounts = mounts
        self._clients: dict[TlsSettings | None, httpx.AsyncClient] = {}
        self.connections_opened = 0
        self.connections_reused = 0

    async def send(self, request: PreparedRequest, deadline: float) -> Outcome:
        """See `Transport.send`."""
        started = time.monotonic()
        progress = Progress()
        PROGRESS.set(progress)
        answer = _Answer()
        failure: Exception | None = None
        try:
            async with asyncio.timeout(deadline):
                await self._exchange(request, answer, progress)
        except Exception as exc:  # noqa: BLE001 whatever it is, it becomes an outcome
            failure = exc
        finally:
            if answer.response is not None:
                await answer.response.aclose()
        self._count(progress)
        duration = time.monotonic() - started
        if answer.response is None:
            assert failure is not None  # noqa: S101 there is an answer or a failure
            classify = _classify_proxied if self._proxy else classify_httpx
            return failed(failure, progress.phase, classify, deadline=deadline, duration=duration)
        return answered(
            answer.response.status_code,
            kept_headers(answer.response.headers.raw),
            bytes(answer.body[: self._response_cap]),
            truncated=not answer.complete,
            duration=duration,
        )

    async def close(self) -> None:
        """Close all connections. The transport can't be used afterwards."""
        for client in self._clients.values():
            await client.aclose()
        await self._resolver.close()

    def _count(self, progress: Progress) -> None:
        if progress.opened:
            self.connections_opened += 1
        elif progress.phase is Phase.ANSWER:
            self.connections_reused += 1

    async def _exchange(
        self, request: PreparedRequest, answer: _Answer, progress: Progress
    ) -> None:
        checked = check_url(request.url, self._policy)
        client = self._clients.get(request.tls) or await self._open(request.tls)
        prepared = _prepare(request, checked, as_registered=self._direct)
        progress.phase = Phase.QUEUED
        response = await client.send(prepared, stream=True, follow_redirects=False)
        answer.response = response
        async for chunk in response.aiter_raw():
            answer.body += chunk
            if len(answer.body) > self._response_cap:
                return
        answer.complete = True

    async def _open(self, settings: TlsSettings | None) -> httpx.AsyncClient:
        context = await self._contexts.get(settings)
        known = self._clients.get(settings)
        if known is not None:  # opened by somebody else meanwhile
            return known
        transport = httpx.AsyncHTTPTransport(
            verify=context, trust_env=False, limits=self._limits, proxy=self._proxy
        )
        # httpx has no parameter for what httpcore's pools take as network_backend.
        transport._pool._network_backend = self._backend  # noqa: SLF001
        client = httpx.AsyncClient(
            transport=transport,
            mounts=self._mounts,
            timeout=None,  # noqa: S113 the deadline is ours
            trust_env=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        )
        if len(self._clients) >= _CLIENTS_SIZE:
            oldest = next(key for key in self._clients if key is not None)
            await self._clients.pop(oldest).aclose()
        self._clients[settings] = client
        return client


class _Answer:
    __slots__ = ("body", "complete", "response")

    def __init__(self) -> None:
        self.response: httpx.Response | None = None
        self.body = bytearray()
        self.complete = False


def _prepare(
    request: PreparedRequest, checked: CheckedUrl, *, as_registered: bool
) -> httpx.Request:
    headers = httpx.Headers(request.headers)
    headers.setdefault("accept", "*/*")
    headers.setdefault("accept-encoding", "identity")
    extensions: dict[str, Any] = {"timeout": {}}
    if as_registered:
        # httpx would encode some characters. A proxy needs the whole URL there and can't have this.
        extensions["target"] = checked.target.encode("ascii")
    try:
        return httpx.Request(
            "POST", checked.url, headers=headers, content=request.body, extensions=extensions
        )
    except httpx.InvalidURL as exc:
        raise BlockedUrl("url", f"httpx can't use the URL: {exc}") from exc


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Opens connections to checked addresses only.

    ``connect_timeout`` is in seconds for each address; ``read_budget`` limits the bytes of an
    answer.
    """

    def __init__(self, resolver: Resolver, *, connect_timeout: float, read_budget: int) -> None:
        self._resolver = resolver
        self._connect_timeout = connect_timeout
        self._read_budget = read_budget
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 httpcore's; the deadline is ours
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first address of ``host`` that accepts; all of them were checked."""
        progress = PROGRESS.get()
        progress.phase = Phase.RESOLVING
        addresses = await self._resolver.resolve(host)
        progress.phase = Phase.CONNECTING
        failure: Exception | None = None
        for address in addresses:
            try:
                stream = await self._inner.connect_tcp(
                    str(address), port, self._connect_timeout, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as exc:
                failure = exc
            else:
                progress.opened = True
                return GuardedStream(stream, self._read_budget, self._connect_timeout)
        raise failure or httpcore.ConnectError("no address")

    async def sleep(self, seconds: float) -> None:
        """Wait; httpcore asks for it between its own retries, which are off."""
        await self._inner.sleep(seconds)


class GuardedStream(httpcore.AsyncNetworkStream):
    """A connection that notes when writing begins and limits what is read for one request."""

    def __init__(
        self, inner: httpcore.AsyncNetworkStream, read_budget: int, handshake_timeout: float
    ) -> None:
        self._inner = inner
        self._handshake_timeout = handshake_timeout
        self._read_budget = read_budget
        self._left = read_budget

    async def read(
        self,
        max_bytes: int,
        timeout: float | None = None,  # noqa: ASYNC109 httpcore's
    ) -> bytes:
        """Read some bytes; raises when an answer exceeds the budget."""
        data = await self._inner.read(min(max_bytes, 16_384), timeout)
        self._left -= len(data)
        if self._left < 0:
            raise httpcore.RemoteProtocolError("too much came before the body")
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Write, from which time on the request may have arrived."""
        PROGRESS.get().phase = Phase.ANSWER
        self._left = self._read_budget
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        """Close the connection."""
        await self._inner.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 httpcore's
    ) -> httpcore.AsyncNetworkStream:
        """Do the handshake and return the encrypted stream."""
        PROGRESS.get().phase = Phase.HANDSHAKE
        limit = self._handshake_timeout
        try:
            stream = await self._inner.start_tls(ssl_context, server_hostname, limit)
        except BaseException:
            # httpcore forgets the connection when the deadline cancels a handshake.
            await self._inner.aclose()
            raise
        return GuardedStream(stream, self._read_budget, limit)

    def get_extra_info(self, info: str) -> Any:
        """Return what httpcore wants to know of the socket."""
        return self._inner.get_extra_info(info)


def classify_httpx(exc: BaseException, phase: Phase) -> Verdict | None:
    """Return kind and reason of an exception of httpx, None for any other."""
    if isinstance(exc, httpx.ConnectTimeout):
        return NO_CONNECTION
    if isinstance(exc, httpx.ProxyError):
        return OutcomeKind.CONNECT, f"the egress proxy answered {exc}"
    if isinstance(exc, httpx.NetworkError):
        return _network_verdict(exc, phase)
    if isinstance(exc, httpx.RemoteProtocolError):
        if "without sending a response" in str(exc):
            return HUNG_UP
        return OutcomeKind.PROTOCOL, f"the answer is not valid HTTP: {exc}"
    return None


def _classify_proxied(exc: BaseException, phase: Phase) -> Verdict | None:
    unreachable = isinstance(exc, httpx.ConnectError) and phase is Phase.CONNECTING
    return PROXY_UNREACHABLE if unreachable else classify_httpx(exc, phase)


def _network_verdict(exc: BaseException, phase: Phase) -> Verdict:
    cause: BaseException | None = exc
    found: OSError | None = None
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return OutcomeKind.TLS, tls_reason(cause)
        if isinstance(cause, OSError):
            found = cause
        cause = cause.__cause__ or cause.__context__
    if phase is Phase.HANDSHAKE:
        return OutcomeKind.TLS, "TLS failed: the receiver closed the connection in the handshake"
    return connection_verdict(found or OSError(str(exc)), phase)
