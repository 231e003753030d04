"""The two clients: the same operations, done in blocking and in asynchronous code."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx

from sender.client.binding import AsyncPages, Pages
from sender.client.deadline import heed, is_over, within
from sender.client.exchange import NoAnswer, Pause, Policy, Send, Steps, exchange
from sender.client.opening import Options, prepared
from sender.client.operations import Operations
from sender.client.reading import Answer
from sender.client.request import Request
from sender.client.results import Page
from sender.errors import ClientError

T = TypeVar("T")
MAX_ANSWER_BYTES = 64 * 2**20
"""The largest body of an event is 16 MiB, and a third more in base64."""
LIMITS = httpx.Limits(
    max_connections=100,
    max_keepalive_connections=20,
    # Under the 5 s after which uvicorn closes idle connections, or a request would meet one that
    # is just being closed (encode/httpx#1478).
    keepalive_expiry=3.0,
)
CONNECT_TIMEOUT = 5.0
"""Seconds. Less than a try has, so that it is known that nothing was sent."""
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)


class Client(Operations):
    """A client of the service's API for blocking code; safe to share between threads.

    ``base_url``: where the service is, such as ``https://hooks.example.com``. ``key``: an API
    key. ``transport`` replaces httpx's own, ``sleep`` the pauses between tries; `Options` names
    the rest. Close it, or use it in ``with``.

    Raises `ClientError` for unusable arguments; the operations raise `ApiError` and
    `ApiUnreachable`.
    """

    def __init__(
        self,
        base_url: str,
        key: str,
        *,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], object] = time.sleep,
        **options: Unpack[Options],
    ) -> None:
        self._policy, settings = prepared(base_url, key, options)
        self._sleep = sleep
        self._http = httpx.Client(transport=transport, limits=LIMITS, **settings)
        heed(self._http)

    def perform(self, request: Request[T], /) -> T:
        """Do a call: what all operations come down to."""
        steps = _begun(self._http, request, self._policy)
        step = next(steps)
        while True:
            try:
                step = steps.send(self._do(step))
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]

    def paginate(self, request: Request[Page[T]], /) -> Pages[T]:
        """Return the pages from ``request`` on."""
        return Pages(self, request)

    def _do(self, step: Send | Pause) -> Answer | NoAnswer | None:
        if isinstance(step, Pause):
            self._sleep(step.seconds)
            return None
        try:
            with within(step.seconds), self._http.stream(**_arguments(step)) as response:
                body = _Body(response)
                for chunk in response.iter_bytes():
                    body.add(chunk)
                    if is_over():
                        return _no_time(step)
                return body.answer()
        except (httpx.RequestError, _TooLong) as error:
            return _no_answer(step, error)

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return _shown(self, self._http)


class AsyncClient(Operations):
    """A client of the service's API for asyncio. Takes the arguments of `Client`.

    Close it with ``aclose``, or use it in ``async with``.
    """

    def __init__(
        self,
        base_url: str,
        key: str,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        **options: Unpack[Options],
    ) -> None:
        self._policy, settings = prepared(base_url, key, options)
        self._sleep = sleep
        self._http = httpx.AsyncClient(transport=transport, limits=LIMITS, **settings)

    async def perform(self, request: Request[T], /) -> T:
        """Do a call: what all operations come down to."""
        steps = _begun(self._http, request, self._policy)
        step = next(steps)
        while True:
            try:
                step = steps.send(await self._do(step))
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]

    def paginate(self, request: Request[Page[T]], /) -> AsyncPages[T]:
        """Return the pages from ``request`` on."""
        return AsyncPages(self, request)

    async def _do(self, step: Send | Pause) -> Answer | NoAnswer | None:
        if isinstance(step, Pause):
            await self._sleep(step.seconds)
            return None
        try:
            async with (
                asyncio.timeout(step.seconds),
                self._http.stream(**_arguments(step)) as response,
            ):
                body = _Body(response)
                async for chunk in response.aiter_bytes():
                    body.add(chunk)
                return body.answer()
        except TimeoutError:
            return _no_time(step)
        except (httpx.RequestError, _TooLong) as error:
            return _no_answer(step, error)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return _shown(self, self._http)


class _TooLong(Exception):
    def __init__(self) -> None:
        super().__init__(f"the answer has more than {MAX_ANSWER_BYTES} bytes")


class _Body:
    """The body of an answer while it is read."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._chunks: list[bytes] = []
        self._size = 0

    def add(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._size > MAX_ANSWER_BYTES:
            raise _TooLong
        self._chunks.append(chunk)

    def answer(self) -> Answer:
        headers = {name.lower(): value for name, value in self._response.headers.items()}
        return Answer(self._response.status_code, headers, b"".join(self._chunks))


def _begun(http: httpx.Client | httpx.AsyncClient, request: Request[T], policy: Policy) -> Steps[T]:
    if http.is_closed:
        raise ClientError("the client is closed; make a new one")
    return exchange(request, policy)


def _arguments(step: Send) -> dict[str, Any]:
    request = step.request
    return {
        "method": request.method,
        "url": request.path,
        "params": request.query or None,
        "content": request.body,
        "headers": request.headers,
        "timeout": httpx.Timeout(step.seconds, connect=min(step.seconds, CONNECT_TIMEOUT)),
    }


def _no_answer(step: Send, error: Exception) -> NoAnswer:
    if isinstance(error, httpx.ReadTimeout | httpx.WriteTimeout):
        return _no_time(step)
    # Of other errors only the type: their text may quote a header or a URL.
    is_quotable = isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError | _TooLong)
    text = str(error) if is_quotable else ""
    reason = ": ".join(part for part in (type(error).__name__.lstrip("_"), text) if part)
    return NoAnswer(reason, may_have_arrived=not isinstance(error, _NEVER_SENT))


def _no_time(step: Send) -> NoAnswer:
    return NoAnswer(f"no answer within {step.seconds:.3g} s")


def _shown(client: object, http: httpx.Client | httpx.AsyncClient) -> str:
    return f"<{type(client).__name__} {http.base_url}>"
