"""Missed events, through a gate, against respx and against a real server."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import respx

import receiver.call
from receiver.feed import FeedError, FeedItem, MissedEvents, PagedFeed
from receiver.gate import Claimed, Done, Gate, GateError
from receiver.memory import MemoryStore
from receiver.pull import MAX_WAIT, retry_after

NOW = datetime(2026, 11, 29, 10, 0, 0, tzinfo=UTC)
SHOP = "https://api.shop.example/missed"


class Service:
    """The feed as the docstring of `receiver.feed` defines it, over HTTP on loopback."""

    def __init__(self, bodies: list[bytes]) -> None:
        self.missed = {f"dlv_{n:03}": body for n, body in enumerate(bodies)}
        self.order = sorted(self.missed)
        self.refusals: list[tuple[int, dict[str, str]]] = []
        self.pages: list[dict[str, list[str]]] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                query = parse_qs(urlsplit(self.path).query)
                if self.headers["authorization"] != "Bearer key":
                    self.answer(401, None)
                elif service.refusals:
                    status, headers = service.refusals.pop(0)
                    self.answer(status, None, headers)
                else:
                    self.answer(200, service.page(query))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                for name in body["deliveries"]:
                    service.missed.pop(name, None)
                self.answer(204, None)

            def answer(self, status: int, page: Any, headers: dict[str, str] | None = None) -> None:
                body = b"" if page is None else json.dumps(page).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def page(self, query: dict[str, list[str]]) -> dict[str, Any]:
        self.pages.append(query)
        after, limit = query.get("cursor", [""])[0], int(query["limit"][0])
        names = [name for name in self.order if name > after and name in self.missed]
        return {
            "items": [self.entry(name) for name in names[:limit]],
            "next_cursor": names[limit - 1] if len(names) > limit else None,
        }

    def entry(self, name: str) -> dict[str, Any]:
        body = base64.b64encode(self.missed[name]).decode()
        return {
            "delivery": name,
            "event": "evt_1",
            "event_type": "a.b",
            "attempts": 3,
            "body_base64": body,
        }

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


BODIES = [b'{"a":1.0,"s":"\\u00e9"}', '{"t":"🚀"}'.encode(), b"\xff\x00\xfe", b"", b"4", b"5", b"6"]


@pytest.fixture
def service() -> Iterator[Service]:
    server = Service(BODIES)
    yield server
    server.close()


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Waits asked for, instead of waiting."""
    seen: list[float] = []

    async def pause(seconds: float) -> None:
        seen.append(seconds)

    monkeypatch.setattr(receiver.call.time, "sleep", seen.append)
    monkeypatch.setattr(receiver.call.asyncio, "sleep", pause)
    return seen


def client(service: Service) -> httpx.Client:
    return httpx.Client(base_url=service.url, headers={"authorization": "Bearer key"})


def test_iterates_every_page_with_exact_bytes(service: Service) -> None:
    with client(service) as http:
        items = list(MissedEvents(http, "ep_1", limit=3, scope="surehook:"))
    assert [item.body for item in items] == BODIES
    assert [item.key for item in items][:2] == ["surehook:dlv_000", "surehook:dlv_001"]
    assert (items[0].id, items[0].event_id, items[0].type) == ("dlv_000", "evt_1", "a.b")
    assert items[0].attempt == 3
    assert len(service.pages) == 3
    assert service.pages[0]["undelivered"] == ["true"]


@pytest.mark.parametrize("number", [0, 1, 2, 3, 4, 6])
def test_last_page_and_exact_multiples(number: int) -> None:
    service = Service([b"x"] * number)
    try:
        with client(service) as http:
            assert len(list(MissedEvents(http, "ep_1", limit=2))) == number
    finally:
        service.close()


def test_drain_handles_each_once_and_acknowledges(service: Service) -> None:
    gate, handled = Gate(MemoryStore()), []
    live = gate.claim("dlv_001").run()
    assert isinstance(live, Claimed)
    gate.complete("dlv_001", live.token).run()
    with client(service) as http:
        drained = MissedEvents(http, "ep_1", limit=3).drain(gate, handled.append).run()
        assert (drained.handled, drained.duplicates, drained.complete) == (6, 1, True)
        assert [item.id for item in handled] == [f"dlv_{n:03}" for n in (0, 2, 3, 4, 5, 6)]
        assert service.missed == {}
        again = MissedEvents(http, "ep_1").drain(gate, handled.append).run()
    assert again.handled == again.duplicates == 0


async def test_drain_asynchronously_with_an_asynchronous_handler(service: Service) -> None:
    gate, handled = Gate(MemoryStore()), []

    async def handle(item: FeedItem) -> None:
        handled.append(item.id)

    async with httpx.AsyncClient(
        base_url=service.url, headers={"authorization": "Bearer key"}
    ) as http:
        feed = MissedEvents(http, "ep_1", limit=2)
        drained = await feed.drain(gate, handle)
        assert drained.handled == 7
        assert [item async for item in MissedEvents(http, "ep_1")] == []
    assert service.missed == {}


def test_failed_item_is_not_acknowledged_and_comes_again(service: Service) -> None:
    gate, tried = Gate(MemoryStore()), []

    def handle(item: FeedItem) -> None:
        tried.append(item.id)
        if item.id == "dlv_002" and tried.count("dlv_002") == 1:
            raise ValueError("once")

    with client(service) as http:
        first = MissedEvents(http, "ep_1", limit=2).drain(gate, handle).run()
        assert (first.handled, first.failed, first.complete) == (6, 1, False)
        assert list(service.missed) == ["dlv_002"]
        second = MissedEvents(http, "ep_1", limit=2).drain(gate, handle).run()
    assert (second.handled, second.complete) == (1, True)
    assert service.missed == {}


def test_in_progress_and_mismatch_are_left_alone(service: Service) -> None:
    gate, handled = Gate(MemoryStore()), []
    gate.claim("dlv_000").run()
    gate.claim("dlv_001", "other body").run()
    with client(service) as http:
        drained = MissedEvents(http, "ep_1").drain(gate, handled.append).run()
    assert (drained.handled, drained.blocked, drained.mismatched) == (5, 2, 1)
    assert sorted(service.missed) == ["dlv_000", "dlv_001"]


def test_asynchronous_handler_in_a_synchronous_call_is_an_error(service: Service) -> None:
    gate = Gate(MemoryStore())

    async def handle(item: FeedItem) -> None: ...

    with client(service) as http, pytest.raises(GateError, match="await the call"):
        MissedEvents(http, "ep_1").drain(gate, handle).run()
    assert isinstance(gate.claim("dlv_000").run(), Claimed), "it was released"


def test_resumes_at_a_position(service: Service) -> None:
    with client(service) as http:
        feed = MissedEvents(http, "ep_1", limit=3)
        for item in feed:
            if item.id == "dlv_004":
                break
        assert feed.position == "dlv_002"
        rest = [item.id for item in MissedEvents(http, "ep_1", after=feed.position)]
    assert rest == ["dlv_003", "dlv_004", "dlv_005", "dlv_006"]


def test_retry_after_is_heeded(service: Service, pauses: list[float]) -> None:
    service.refusals = [
        (429, {"retry-after": "7"}),
        (503, {"retry-after": "-1"}),
        (503, {"retry-after": "1800000"}),
        (500, {}),
    ]
    with client(service) as http:
        assert len(list(MissedEvents(http, "ep_1"))) == 7
    assert pauses == [7.0, 2.0, MAX_WAIT, 8.0]


def test_gives_up_and_says_why(service: Service) -> None:
    service.refusals = [(503, {})] * 10
    with client(service) as http:
        with pytest.raises(FeedError, match="answered 503") as caught:
            list(MissedEvents(http, "ep_1", retries=2))
        assert caught.value.status == 503
        assert len(service.refusals) == 7
    with httpx.Client(base_url=service.url) as http, pytest.raises(FeedError, match="answered 401"):
        list(MissedEvents(http, "ep_1"))


def test_no_connection_is_tried_again_then_an_error(pauses: list[float]) -> None:
    with (
        httpx.Client(base_url="http://127.0.0.1:9") as http,
        pytest.raises(FeedError, match="ConnectError") as caught,
    ):
        list(MissedEvents(http, "ep_1", retries=2))
    assert caught.value.status is None
    assert pauses == [1.0, 2.0]


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"[]", b"{}", b"null", b"nope", b'{"items":1}', b'{"items":[1]}', b'{"items":[{}]}',
        b'{"items":[{"delivery":"d","event_type":"t","body_base64":1}]}',
        b'{"items":[{"delivery":"d","event_type":"t","body_base64":"!"}]}',
        b'{"items":[{"delivery":1,"event_type":"t","body_base64":""}]}', b"[" * 100_000, b"\xff",
    ],
)  # fmt: skip
def test_odd_answers_are_feed_errors(answer: bytes, respx_mock: respx.MockRouter) -> None:
    respx_mock.get("https://hooks.example/v1/endpoints/ep_1/feed").respond(content=answer)
    with httpx.Client(base_url="https://hooks.example") as http, pytest.raises(FeedError):
        list(MissedEvents(http, "ep_1"))


def test_a_cursor_that_stands_still_ends(respx_mock: respx.MockRouter) -> None:
    respx_mock.get("https://hooks.example/v1/endpoints/ep_1/feed").respond(
        json={"items": [], "next_cursor": "c"}
    )
    with httpx.Client(base_url="https://hooks.example") as http:
        assert list(MissedEvents(http, "ep_1", after="c")) == []


def shop(respx_mock: respx.MockRouter, topics: dict[str, list[dict[str, Any]]]) -> list[httpx.URL]:
    """A provider whose pages are cut to 2 whatever limit is asked for."""
    seen: list[httpx.URL] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.url)
        messages = topics[request.url.params["topic"]]
        offset = int(request.url.params["offset"])
        return httpx.Response(200, json={"messages": messages[offset : offset + 2]})

    respx_mock.get(SHOP).mock(side_effect=answer)
    return seen


def paged(http: httpx.Client, **options: Any) -> PagedFeed:
    return PagedFeed(
        http, SHOP, topics=["orders", "items"], params={"app_id": "7"}, limit=50,
        key=lambda item: f"shop:{item['_id']}", **options,
    )  # fmt: skip


def test_paged_feed_goes_through_every_topic(respx_mock: respx.MockRouter) -> None:
    topics = {"orders": [{"_id": n} for n in range(5)], "items": [{"_id": 9, "s": "é"}]}
    seen = shop(respx_mock, topics)
    gate, handled = Gate(MemoryStore()), []
    with httpx.Client() as http:
        drained = paged(http).drain(gate, handled.append).run()
        assert drained.handled == 6
        assert [item.type for item in handled] == ["orders"] * 5 + ["items"]
        assert handled[-1].body == '{"_id":9,"s":"é"}'.encode()
        assert handled[-1].data == {"_id": 9, "s": "é"}
        assert seen[0].params["app_id"] == "7"
        assert paged(http).drain(gate, handled.append).run().duplicates == 6
    assert gate.claim("shop:0").run() == Done(None)


def test_paged_feed_whose_elements_count_attempts_is_no_mismatch(
    respx_mock: respx.MockRouter,
) -> None:
    topics = {"orders": [{"_id": 1, "attempts": 1}], "items": []}
    shop(respx_mock, topics)
    gate, handled = Gate(MemoryStore()), []
    with httpx.Client() as http:
        paged(http).drain(gate, handled.append).run()
        topics["orders"][0]["attempts"] = 2
        assert paged(http).drain(gate, handled.append).run().duplicates == 1


def test_paged_feed_resumes(respx_mock: respx.MockRouter) -> None:
    shop(respx_mock, {"orders": [{"_id": n} for n in range(5)], "items": [{"_id": 9}]})
    with httpx.Client() as http:
        feed = paged(http)
        iterator = iter(feed)
        assert [next(iterator).id for _ in range(3)] == ["shop:0", "shop:1", "shop:2"]
        assert feed.position == (0, 2)
        rest = [item.id for item in paged(http, start=feed.position)]
    assert rest == ["shop:2", "shop:3", "shop:4", "shop:9"]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None), ("", None), ("soon", None), ("-1", None), ("1.5", None),
        ("\uff11\uff12", None),
        ("0", 0.0), ("30", 30.0), (" 30 ", 30.0), ("9" * 5000, MAX_WAIT), ("1800000", MAX_WAIT),
        ("Sun, 29 Nov 2026 10:00:10 GMT", 10.0), ("Sun, 29 Nov 2026 09:00:00 GMT", 0.0),
        ("Sunday, 29-Nov-26 10:00:10 GMT", 10.0), ("Sun Nov 29 10:00:10 2026", 10.0),
        ("Sun, 29 Nov 2026 10:00:10 -0000", 10.0), ("Sun, 99 Nov 2026 10:00:10 GMT", None),
    ],
)  # fmt: skip
def test_d07_retry_after_forms(value: str | None, seconds: float | None) -> None:
    assert retry_after(value, NOW) == seconds
    assert NOW + timedelta(seconds=retry_after(value, NOW) or 0) >= NOW
