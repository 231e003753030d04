"""Missed events: what did not arrive live is pulled, and passes the same gate.

A Surehook service offers them as a feed of deliveries::

    GET  {base}/v1/endpoints/{endpoint_id}/feed?undelivered=true&base64=true&limit=50[&cursor={…}]
    Authorization: Bearer {key of the endpoint's tenant}

    200 {"items": [{"delivery": "dlv_…", "event": "evt_…", "event_type": "invoice.paid",
                    "attempts": 3, "content_type": "application/json", "body_base64": "eyJ…"}, …],
         "next_cursor": "…" or null}

    POST {base}/v1/endpoints/{endpoint_id}/feed/acknowledge
    {"deliveries": ["dlv_…", …]}
    2xx with any body

``items`` is in the order of the delivery ids. ``body_base64`` is the stored body, byte for byte.
``attempts`` is the number of attempts made so far and may be missing, as may further members.
``next_cursor`` is opaque, and null on the last page. A page at a cursor does not depend on what has
been acknowledged meanwhile. Acknowledging counts the deliveries as delivered by pull: they are
neither sent nor listed as undelivered again; unknown or finished ones are no error. 429 and 503
may carry ``Retry-After``.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import httpx

from receiver.call import Call
from receiver.drive import AnyContext
from receiver.errors import GateError
from receiver.feeditem import Drained, FeedItem, Handler, Passage
from receiver.gate import Gate
from receiver.pull import FeedError, fetch
from receiver.store import Steps

__all__ = ["Drained", "FeedError", "FeedItem", "MissedEvents", "PagedFeed"]

Client = httpx.Client | httpx.AsyncClient


@dataclass(frozen=True, slots=True)
class Page:
    """Some items, and the position after them; None after the last."""

    items: list[FeedItem]
    next: Any


P = TypeVar("P")


class _Feed(Generic[P]):
    """Pages, one after the other, of either kind of client."""

    def __init__(self, client: Client, start: P, retries: int) -> None:
        self._client = client
        self._retries = retries
        self.position: P = start
        """Where to begin again: everything before it has been iterated or drained."""

    def _page(self, position: P) -> Steps[Page]:
        raise GateError(f"this feed has no page at {position!r}")

    def _acknowledge(self, items: list[FeedItem]) -> Steps[None]:
        del items
        yield None

    def page(self) -> Call[Page]:
        """The page at ``position``, which stays where it is. Raises `FeedError`."""
        return self._call(self._page(self.position))

    def __iter__(self) -> Iterator[FeedItem]:
        """All items from ``position`` on; the position moves on after each page."""
        following: Any = self.position
        while following is not None:
            page = self.page().run()
            yield from page.items
            following = self._move(page)

    async def __aiter__(self) -> AsyncIterator[FeedItem]:
        following: Any = self.position
        while following is not None:
            page = await self.page()
            for item in page.items:
                yield item
            following = self._move(page)

    def drain(
        self,
        gate: Gate,
        handle: Handler,
        *,
        lease: float | None = None,
        transaction: Callable[[], AnyContext] | None = None,
    ) -> Call[Drained]:
        """Handle every item from ``position`` on through `gate`, and acknowledge what is done.

        `handle` may be asynchronous if the call is awaited. An item whose handler raises is
        released, with the error, and the rest goes on: look at `Drained.complete` and drain
        again later. `lease`, in seconds, must be longer than one handler takes. With `transaction`
        (``sessionmaker.begin``) the claim is made inside that transaction, the handler gets the
        session as its second argument, and effect and claim commit together: exactly once.

        Raises `FeedError` when the feed can't be read; what was handled by then is done.
        """
        return self._call(self._drain(Passage(gate, handle, lease, transaction)), gate)

    def _drain(self, passage: Passage) -> Steps[Drained]:
        drained = passage.drained
        following: Any = self.position
        while following is not None:
            page = yield from self._page(self.position)
            finished: list[FeedItem] = []
            for item in page.items:
                if (yield from passage.take(item)):
                    finished.append(item)  # noqa: PERF401 - a comprehension can't yield
            if finished:
                yield from self._acknowledge(finished)
            following = self._move(page)
        return drained

    def _move(self, page: Page) -> Any:
        if page.next is not None:
            self.position = page.next
        return page.next

    def _call(self, steps: Steps[Any], gate: Gate | None = None) -> Call[Any]:
        blocking = isinstance(self._client, httpx.Client)
        if blocking and gate is not None and not gate.store.blocking:
            # An asynchronous store would need the loop that a thread doesn't have.
            blocking = False
        return Call(steps, blocking=blocking)


class MissedEvents(_Feed[str]):
    """The undelivered deliveries of one endpoint of a Surehook service.

    `client` is an ``httpx.Client`` or ``httpx.AsyncClient`` that sends the key: ``Client(
    base_url="https://hooks.example", headers={"authorization": "Bearer …"})``. `scope` is put
    before the delivery id to make the key: it must be the one that live deliveries get
    (``verifier.scope``), so that both pass the same gate as one message. `after` is a ``position``
    from before. `undelivered` False gives the delivered ones, too. `limit`, at most 50, is the
    number of items in a page.
    """

    def __init__(
        self,
        client: Client,
        endpoint_id: str,
        *,
        scope: str = "",
        after: str = "",
        undelivered: bool = True,
        limit: int = 50,
        retries: int = 5,
    ) -> None:
        super().__init__(client, after, retries)
        self._path = f"/v1/endpoints/{endpoint_id}/feed"
        self._scope = scope
        self._query: dict[str, Any] = {
            "undelivered": str(undelivered).lower(),
            "base64": "true",
            "limit": limit,
        }

    def acknowledge(self, items: Iterable[FeedItem]) -> Call[None]:
        """Tell the service that these are handled, so that it does not send them any more."""
        return self._call(self._acknowledge(list(items)))

    def _acknowledge(self, items: list[FeedItem]) -> Steps[None]:
        url, body = self._path + "/acknowledge", {"deliveries": [item.id for item in items]}
        yield from fetch(self._client, "POST", url, retries=self._retries, json=body)

    def _page(self, position: str) -> Steps[Page]:
        query = {**self._query, "cursor": position} if position else self._query
        reply = yield from fetch(
            self._client, "GET", self._path, retries=self._retries, params=query
        )
        try:
            items = [self._item(data) for data in reply["items"]]
            following = reply.get("next_cursor")
        except (KeyError, TypeError, AttributeError, ValueError, binascii.Error) as error:
            raise FeedError(f"the feed's page is not as documented: {error!r}", 200) from None
        # An empty page that names itself as the next would be read for ever.
        return Page(items, following if following and following != position else None)

    def _item(self, data: Mapping[str, Any]) -> FeedItem:
        body = base64.b64decode(data["body_base64"], validate=True)
        name = data["delivery"]
        return FeedItem(
            key=self._scope + name,
            id=name,
            type=data["event_type"],
            body=body,
            event_id=data.get("event", ""),
            attempt=int(data.get("attempts") or 0),
            data=data,
        )


class PagedFeed(_Feed[tuple[int, int]]):
    """A provider's missed messages by topic, offset and limit, such as Mercado Libre's::

        PagedFeed(client, "https://api.mercadolibre.com/missed_feeds", topics=["orders_v2"],
                  params={"app_id": "…"}, items="messages", key=lambda item: "ml:" + item["_id"])

    `key` gives the key that the same message has live; `items` names the list in the answer (a
    list itself needs ""). `parameters` are the names of topic, offset and limit in the query.
    ``position`` is (number of the topic, offset), and can be given as `start`. A feed by offset
    can shift while it is read: drain it again until nothing new is handled; the gate knows the
    rest.
    """

    def __init__(
        self,
        client: Client,
        url: str,
        *,
        key: Callable[[Any], str],
        topics: Iterable[str] = ("",),
        params: Mapping[str, str] | None = None,
        items: str = "messages",
        limit: int = 50,
        parameters: tuple[str, str, str] = ("topic", "offset", "limit"),
        start: tuple[int, int] = (0, 0),
        retries: int = 5,
    ) -> None:
        super().__init__(client, start, retries)
        self._url = url
        self._key = key
        self._topics = tuple(topics)
        if not self._topics or limit < 1:
            raise GateError("topics must name at least one topic, and limit be 1 or more")
        self._params = dict(params or {})
        self._items = items
        self._limit = limit
        self._names = parameters

    def _page(self, position: tuple[int, int]) -> Steps[Page]:
        number, offset = position
        topic = self._topics[number]
        by_topic, by_offset, by_limit = self._names
        query: dict[str, Any] = {**self._params, by_offset: offset, by_limit: self._limit}
        if topic:
            query[by_topic] = topic
        reply = yield from fetch(
            self._client, "GET", self._url, retries=self._retries, params=query
        )
        found = _listed(reply, self._items)
        items = [self._item(data, topic) for data in found]
        if found:
            # Not "fewer than the limit": some providers cut the limit to their own.
            return Page(items, (number, offset + len(found)))
        return Page(items, (number + 1, 0) if number + 1 < len(self._topics) else None)

    def _item(self, data: Any, topic: str) -> FeedItem:
        key = self._key(data)
        body = json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()
        return FeedItem(key=key, id=key, type=topic, body=body, data=data)


def _listed(reply: Any, name: str) -> list[Any]:
    found = reply.get(name) if name and isinstance(reply, dict) else reply
    if found is None:
        return []
    if not isinstance(found, list):
        raise FeedError(f"the page has no list {name!r}: set items to the name of the list", 200)
    return found
