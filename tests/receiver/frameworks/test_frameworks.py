"""Every adapter over real HTTP: the same behaviour in each framework, sync and async."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from receiver.gate import Gate
from receiver.memory import MemoryStore
from receiver.message import Message
from receiver.verify import Verifier
from tests.receiver import samples
from tests.receiver.frameworks.apps import asynchronous, serve
from tests.receiver.samples import NOW, PATH_SECRET, WHSEC, Sample

FRAMEWORKS = ["starlette", "fastapi", "flask", "django-wsgi", "django-asgi"]
LIMIT = 200_000


@dataclass
class Endpoint:
    """What a handler saw, and how it is to behave."""

    url: str = ""
    bodies: list[bytes] = field(default_factory=list)
    named: list[dict[str, Any]] = field(default_factory=list)
    failures: int = 0
    result: Any = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def handle(self, message: Message, **named: Any) -> Any:
        with self.lock:
            if self.failures:
                self.failures -= 1
                raise RuntimeError("no luck")
            self.bodies.append(message.body)
            self.named.append(named)
        return self.result

    def post(self, sample: Sample, content: Any = None, **headers: str) -> httpx.Response:
        return httpx.post(
            f"{self.url}/hooks/it",
            content=sample.body if content is None else content,
            headers=sample.headers | headers,
        )


def clock() -> float:
    return NOW


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def is_async(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=FRAMEWORKS)
def endpoint(request: pytest.FixtureRequest, is_async: bool) -> Iterator[Endpoint]:
    endpoint = Endpoint()
    handler = asynchronous(endpoint.handle) if is_async else endpoint.handle
    verifier = Verifier.standard(WHSEC, clock=clock, max_body=LIMIT)
    with serve(request.param, verifier, Gate(MemoryStore()), handler) as url:
        endpoint.url = url
        yield endpoint


def test_first_delivery_duplicate_and_forgery(endpoint: Endpoint) -> None:
    endpoint.result = {"ok": True}
    sample = samples.standard()
    first, second = endpoint.post(sample), endpoint.post(sample)
    assert (first.status_code, first.json()) == (200, {"ok": True})
    assert first.headers["content-type"] == "application/json"
    assert (second.status_code, second.content) == (200, first.content)
    forged = endpoint.post(sample, content=sample.body + b" ")
    assert forged.status_code == 401
    assert forged.json()["title"] == "signature_mismatch"
    assert endpoint.bodies == [sample.body]
    assert endpoint.named == [{"name": "it"}]


def test_c13_a_latin1_byte_in_the_signature_is_a_401(endpoint: Endpoint) -> None:
    sample = samples.standard()
    headers = [(name.encode(), value.encode()) for name, value in sample.headers.items()]
    headers[-1] = (b"webhook-signature", b"v1,\xe9")
    response = httpx.post(f"{endpoint.url}/hooks/it", content=sample.body, headers=headers)
    assert response.status_code == 401


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\x00\xfe",
        b'{"a":1}\n',
        b"payload=%7B%22a%22%3A1%7D",
        "🚀".encode(),
        b"x" * 100_000,
    ],
    ids=["a16-empty", "binary", "newline", "a09-form", "a05-emoji", "large"],
)
def test_a09_a16_the_raw_body_reaches_the_handler(endpoint: Endpoint, body: bytes) -> None:
    sample = samples.standard(body)
    for content_type in ("application/x-www-form-urlencoded", "application/json"):
        response = endpoint.post(sample, **{"content-type": content_type})
        assert response.status_code == 200
    assert endpoint.bodies == [body]


def test_g02_a_handler_that_raises_answers_500_and_is_tried_again(endpoint: Endpoint) -> None:
    endpoint.failures = 1
    sample = samples.standard()
    statuses = [endpoint.post(sample).status_code for _ in range(3)]
    assert statuses == [500, 200, 200]
    assert len(endpoint.bodies) == 1


def test_g10_a_body_over_the_limit_is_a_413(endpoint: Endpoint) -> None:
    sample = samples.standard(b"x" * LIMIT)
    assert endpoint.post(sample).status_code == 200
    assert endpoint.post(samples.standard(b"x" * (LIMIT + 1))).status_code == 413
    assert len(endpoint.bodies) == 1


def test_g01_fifty_at_once_over_http_have_one_effect(endpoint: Endpoint) -> None:
    sample = samples.standard()
    with ThreadPoolExecutor(50) as pool, httpx.Client(timeout=30) as client:
        url = f"{endpoint.url}/hooks/it"
        fire = [
            pool.submit(client.post, url, content=sample.body, headers=sample.headers)
            for _ in range(50)
        ]
        answers = [future.result() for future in fire]
    assert len(endpoint.bodies) == 1
    assert {answer.status_code for answer in answers} <= {200, 409}
    assert all("retry-after" in answer.headers for answer in answers if answer.status_code == 409)
    assert endpoint.post(sample).status_code == 200
    assert len(endpoint.bodies) == 1


def test_a_get_is_a_405(endpoint: Endpoint) -> None:
    assert httpx.get(f"{endpoint.url}/hooks/it").status_code == 405


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_metas_handshake_over_http(framework: str) -> None:
    verifier = Verifier.meta("hush", verify_token="meatyhamhock")
    with serve(framework, verifier, Gate(MemoryStore()), Endpoint().handle) as url:
        asked = {"hub.mode": "subscribe", "hub.challenge": "1158201444"}
        good = httpx.get(f"{url}/hooks/it", params=asked | {"hub.verify_token": "meatyhamhock"})
        bad = httpx.get(f"{url}/hooks/it", params=asked | {"hub.verify_token": "x"})
    assert (good.status_code, good.text) == (200, "1158201444")
    assert good.headers["content-type"].startswith("text/plain")
    assert bad.status_code == 401
    assert "1158201444" not in bad.text


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_url_reaches_the_verifier_as_it_was_called(framework: str) -> None:
    endpoint = Endpoint()
    with serve(framework, Verifier.twilio("12345"), Gate(MemoryStore()), endpoint.handle) as url:
        called = f"{url}/hooks/it?foo=1&bar=2%203&bar="
        fields = {"AccountSid": "AC1", "Body": "hello there"}
        text = called + "".join(name + fields[name] for name in sorted(fields))
        signature = samples.base64_hmac(b"12345", text.encode(), "sha1")
        headers = {"X-Twilio-Signature": signature}
        assert httpx.post(called, data=fields, headers=headers).status_code == 200
        assert httpx.post(called + "1", data=fields, headers=headers).status_code == 401
    assert len(endpoint.bodies) == 1


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_secret_path_reaches_the_verifier(framework: str) -> None:
    endpoint, sample = Endpoint(), samples.mercado_libre()
    with serve(framework, sample.verifier, Gate(MemoryStore()), endpoint.handle) as url:
        for attempt in (1, 2):
            body = samples.mercado_libre(attempt).body
            assert httpx.post(f"{url}/hooks/{PATH_SECRET}", content=body).status_code == 200
        assert httpx.post(f"{url}/hooks/guess", content=sample.body).status_code == 401
        other = samples.mercado_libre(topic="claims").body
        assert httpx.post(f"{url}/hooks/{PATH_SECRET}", content=other).status_code == 400
    assert len(endpoint.bodies) == 1


@pytest.mark.parametrize("framework", ["starlette", "fastapi", "flask"])
def test_g10_an_endless_chunked_body_is_cut_off(framework: str) -> None:
    # Django is left out: its WSGI handler takes no body without a length, and its ASGI handler
    # spools the whole body to disk before any view runs.
    verifier = Verifier.standard(WHSEC, clock=clock, max_body=LIMIT)
    with serve(framework, verifier, Gate(MemoryStore()), Endpoint().handle) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            head = "POST /hooks/it HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
            connection.sendall(head.encode())
            sender = threading.Thread(target=send_for_ever, args=(connection,))
            sender.start()
            # The answer comes although the body never ends, or else the connection is cut.
            answer = b"cut"
            with suppress(ConnectionError):
                answer = connection.recv(12)
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            sender.join(10)
            assert not sender.is_alive()
    assert answer in (b"HTTP/1.1 413", b"cut")


def send_for_ever(connection: socket.socket) -> None:
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    with suppress(OSError):
        while True:
            connection.sendall(chunk)


def test_flask_responses_of_every_form() -> None:
    from flask import Response

    for result, status, body in (
        (("made", 201), 201, b"made"),
        (Response("made", 202), 202, b"made"),
        ("made", 200, b"made"),
        (("busy", 503), 503, b"busy"),
    ):
        endpoint, sample = Endpoint(result=result), samples.standard()
        verifier = Verifier.standard(WHSEC, clock=clock)
        with serve("flask", verifier, Gate(MemoryStore()), endpoint.handle) as url:
            endpoint.url = url
            answers = [endpoint.post(sample) for _ in range(2)]
        assert [(a.status_code, a.content) for a in answers] == [(status, body)] * 2
        assert len(endpoint.bodies) == (2 if status == 503 else 1)


def test_responses_of_starlette_and_django() -> None:
    from django.http import HttpResponse
    from starlette.responses import JSONResponse

    from tests.receiver.frameworks.apps import configure_django

    configure_django()
    for framework, result, content_type in (
        ("starlette", JSONResponse({"a": 1}, 201), "application/json"),
        ("django-wsgi", HttpResponse(b"made", "text/plain", 201), "text/plain"),
    ):
        endpoint, sample = Endpoint(result=result), samples.standard()
        verifier = Verifier.standard(WHSEC, clock=clock)
        with serve(framework, verifier, Gate(MemoryStore()), endpoint.handle) as url:
            endpoint.url = url
            answers = [endpoint.post(sample) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [201, 201]
        assert answers[0].content == answers[1].content != b""
        assert answers[1].headers["content-type"] == content_type


def test_django_views_are_outside_atomic_requests_and_csrf() -> None:
    from tests.receiver.frameworks.apps import configure_django

    configure_django()
    from receiver.contrib.django import webhook

    view = webhook(Verifier.github("hush"), Gate(MemoryStore()))(Endpoint().handle)
    assert view.csrf_exempt
    assert view._non_atomic_requests == {"default"}
