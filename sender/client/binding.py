"""Operations written once, as functions that return a `Request`, and bound to either client.

On a `Client` an operation gives its result, on an `AsyncClient` an awaitable of it; a listing
gives an iterator of either kind. Type checkers see the operation's own parameters in both.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from sender.client.request import Request, following
from sender.client.results import Page

P = ParamSpec("P")
T = TypeVar("T")


class Blocking(Protocol):
    """What a synchronous client can do."""

    def perform(self, request: Request[T], /) -> T:
        """Do a call."""

    def paginate(self, request: Request[Page[T]], /) -> Pages[T]:
        """Return the pages from ``request`` on."""


class Awaiting(Protocol):
    """What an asynchronous client can do."""

    async def perform(self, request: Request[T], /) -> T:
        """Do a call."""

    def paginate(self, request: Request[Page[T]], /) -> AsyncPages[T]:
        """Return the pages from ``request`` on."""


class Pages(Generic[T]):
    """The items of a list; pages are fetched as they are needed. Each iteration starts anew."""

    def __init__(self, client: Blocking, request: Request[Page[T]]) -> None:
        self._client = client
        self._request = request

    def __iter__(self) -> Iterator[T]:
        for page in self.pages():
            yield from page.items

    def pages(self) -> Iterator[Page[T]]:
        """Iterate over whole pages; ``cursor=page.next_cursor`` goes on from there later."""
        request: Request[Page[T]] | None = self._request
        while request is not None:
            page = self._client.perform(request)
            yield page
            request = following(request, page)


class AsyncPages(Generic[T]):
    """`Pages` for ``async for``."""

    def __init__(self, client: Awaiting, request: Request[Page[T]]) -> None:
        self._client = client
        self._request = request

    async def __aiter__(self) -> AsyncIterator[T]:
        async for page in self.pages():
            for item in page.items:
                yield item

    async def pages(self) -> AsyncIterator[Page[T]]:
        """Iterate over whole pages; ``cursor=page.next_cursor`` goes on from there later."""
        request: Request[Page[T]] | None = self._request
        while request is not None:
            page = await self._client.perform(request)
            yield page
            request = following(request, page)


class operation(Generic[P, T]):  # noqa: N801 - a decorator
    """Make a method that does what the request that the function returns asks for."""

    def __init__(self, make: Callable[Concatenate[Any, P], Request[T]]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, client: Blocking, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: Awaiting, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, client: None, owner: type) -> operation[P, T]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        """Bind the operation to a client."""
        return self if client is None else _bound(self._make, client, client.perform)


class listing(Generic[P, T]):  # noqa: N801 - a decorator
    """Make a method that iterates over the list whose first page the function asks for."""

    def __init__(self, make: Callable[Concatenate[Any, P], Request[Page[T]]]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, client: Blocking, owner: type) -> Callable[P, Pages[T]]: ...
    @overload
    def __get__(self, client: Awaiting, owner: type) -> Callable[P, AsyncPages[T]]: ...
    @overload
    def __get__(self, client: None, owner: type) -> listing[P, T]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        """Bind the listing to a client."""
        return self if client is None else _bound(self._make, client, client.paginate)


def _bound(make: Callable[..., Any], client: Any, act: Callable[[Any], Any]) -> Any:
    @functools.wraps(make)
    def call(*args: Any, **kwargs: Any) -> Any:
        return act(make(client, *args, **kwargs))

    return call
