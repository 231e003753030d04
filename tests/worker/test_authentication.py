"""How attempts authenticate to the receiver."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import parse_qs

import pytest

from delivery_service.net.authentication import Authenticator, Credentials
from delivery_service.policy.outcome import Outcome, OutcomeKind
from tests.support.engine import Engined
from tests.support.receiver import HANG, Answer, Receiver
from tests.worker.conftest import MakeEngined

SECRET = "s3cret-of-ours"


def _endpoint(engined: Engined, receiver: Receiver, **credentials: Any) -> str:
    sealed = engined.service.sealer.seal_json(credentials)
    return engined.endpoint(receiver.url("/hook"), authentication=sealed)


def _oauth(receiver: Receiver, **more: Any) -> dict[str, Any]:
    return {
        "type": "oauth2",
        "token_url": receiver.url("/token"),
        "client_id": "us & them",
        "client_secret": SECRET,
        **more,
    }


def _token(text: str = "tok-1", **members: Any) -> Answer:
    return Answer(
        body=json.dumps({"access_token": text, "token_type": "Bearer", **members}).encode()
    )


def _of(receiver: Receiver, path: str) -> list[Any]:
    return [request for request in receiver.requests if request.path == path]


async def test_basic_and_bearer(engined: Engined, receiver: Receiver) -> None:
    _endpoint(engined, receiver, type="basic", username="us", password=SECRET)
    (basic,) = engined.publish().delivery_ids
    await engined.work()
    (got,) = receiver.requests
    pair = base64.b64encode(f"us:{SECRET}".encode()).decode()
    assert got.header_list("authorization") == [f"Basic {pair}"]
    (attempt,) = engined.attempts(basic)
    assert json.loads(attempt["request_headers"])["authorization"] == "***"
    _endpoint(engined, receiver, type="bearer", token=SECRET)
    engined.publish()
    await engined.work()
    values = {request.header("authorization") for request in receiver.requests}
    assert f"Bearer {SECRET}" in values


async def test_a_token_is_fetched_once_and_kept(engined: Engined, receiver: Receiver) -> None:
    receiver.script("/token", _token(expires_in=3600))
    given = _oauth(receiver, scope="webhooks.write", audience="acme")
    _endpoint(engined, receiver, **given)
    for _ in range(20):
        engined.publish()
    await engined.work()
    (request,) = _of(receiver, "/token")
    assert request.method == "POST"
    assert request.header("content-type") == "application/x-www-form-urlencoded"
    assert parse_qs(request.body.decode()) == {
        "grant_type": ["client_credentials"],
        "scope": ["webhooks.write"],
        "audience": ["acme"],
    }
    scheme, _, pair = (request.header("authorization") or "").partition(" ")
    assert (scheme, base64.b64decode(pair).decode()) == ("Basic", f"us+%26+them:{SECRET}")
    sent = _of(receiver, "/hook")
    assert len(sent) == 20
    assert {each.header("authorization") for each in sent} == {"Bearer tok-1"}


async def test_the_client_can_be_named_in_the_body(engined: Engined, receiver: Receiver) -> None:
    receiver.script("/token", _token())
    _endpoint(engined, receiver, **_oauth(receiver, credentials_in="body"))
    engined.publish()
    await engined.work()
    (request,) = _of(receiver, "/token")
    assert request.header("authorization") is None
    form = parse_qs(request.body.decode())
    assert (form["client_id"], form["client_secret"]) == (["us & them"], [SECRET])


FAILURES: list[tuple[Answer, str]] = [
    (Answer(401, body=SECRET.encode()), "status 401"),
    (Answer(302, headers=(("location", "http://127.0.0.1/x"),)), "status 302"),
    (Answer(500), "status 500"),
    (Answer(body=b"<html>"), "the answer holds no bearer token"),
    (Answer(body=b"[1]"), "the answer holds no bearer token"),
    (Answer(body=b"\xff\xfe"), "the answer holds no bearer token"),
    (Answer(body=b"[" * 5000), "the answer holds no bearer token"),
    (Answer(body=b"{}"), "the answer holds no bearer token"),
    (_token("a\r\nx: y"), "the answer holds no bearer token"),
    (_token("x" * 4000), "the answer holds no bearer token"),
    (_token(token_type="mac"), "the answer holds no bearer token"),
    (_token(token_type=1), "the answer holds no bearer token"),
]


@pytest.mark.parametrize(("answer", "error"), FAILURES)
async def test_without_a_token_nothing_is_sent(
    engined: Engined, receiver: Receiver, answer: Answer, error: str
) -> None:
    receiver.script("/token", answer)
    endpoint_id = _endpoint(engined, receiver, **_oauth(receiver))
    (delivery_id,) = engined.publish().delivery_ids
    await engined.work()
    assert _of(receiver, "/hook") == []
    (attempt,) = engined.attempts(delivery_id)
    assert attempt["kind"] == "authentication"
    assert attempt["error"] == f"no token for the receiver: {error}"
    assert not attempt["may_have_arrived"]
    assert SECRET not in repr(attempt)
    assert engined.status(delivery_id) == ("pending", None, 1)
    assert engined.row(endpoint_id)["failures"] == 1
    # Repaired: the next attempt gets one.
    receiver.script("/token", _token("tok-2"))
    engined.advance(minutes=1)
    await engined.work()
    assert engined.status(delivery_id) == ("delivered", None, 2)


async def test_a_token_server_that_hangs_is_within_the_attempt_s_time(
    make_engined: MakeEngined, receiver: Receiver
) -> None:
    engined = make_engined(attempt_timeout=0.3)
    receiver.script("/token", HANG)
    _endpoint(engined, receiver, **_oauth(receiver))
    (delivery_id,) = engined.publish().delivery_ids
    await engined.work()
    (attempt,) = engined.attempts(delivery_id)
    assert attempt["kind"] == "authentication"
    assert attempt["error"].startswith("no token for the receiver: ")
    assert _of(receiver, "/hook") == []


async def test_the_guard_judges_the_token_url_at_each_request(
    make_engined: MakeEngined, receiver: Receiver
) -> None:
    engined = make_engined(allow_private_networks=False)
    sealed = engined.service.sealer.seal_json(_oauth(receiver))
    engined.endpoint("https://hooks.example.com/", authentication=sealed)
    (delivery_id,) = engined.publish().delivery_ids
    await engined.work()
    (attempt,) = engined.attempts(delivery_id)
    assert (attempt["kind"], attempt["error"]) == (
        "authentication",
        "no token for the receiver: blocked",
    )
    assert receiver.requests == []


async def test_a_401_of_the_receiver_ends_the_token(engined: Engined, receiver: Receiver) -> None:
    endpoint_id = _endpoint(engined, receiver, **_oauth(receiver))
    receiver.script("/token", _token("tok-1"), _token("tok-2"))
    receiver.script("/hook", Answer(401), Answer(200))
    (delivery_id,) = engined.publish().delivery_ids
    worker = engined.worker()
    await worker.run_until_idle()
    engined.advance(minutes=1)
    await worker.run_until_idle()
    await worker._sending.transport.close()
    sent = [request.header("authorization") for request in _of(receiver, "/hook")]
    assert sent == ["Bearer tok-1", "Bearer tok-2"]
    assert engined.status(delivery_id) == ("delivered", None, 2)
    assert engined.row(endpoint_id)["status"] == "enabled"


async def test_an_unusable_row_fails_its_own_attempts_only(
    engined: Engined, receiver: Receiver
) -> None:
    engined.endpoint(receiver.url("/hook"), authentication=b"nonsense")
    engined.endpoint(receiver.url("/other"))
    engined.publish()
    await engined.work()
    assert [request.path for request in receiver.requests] == ["/other"]


def _granted(text: str, **members: Any) -> Outcome:
    body = json.dumps({"access_token": text, **members}).encode()
    return Outcome(OutcomeKind.DELIVERED, status_code=200, response_body=body)


class _Server:
    """A token server of numbered tokens, and a clock."""

    def __init__(self, **members: Any) -> None:
        self.time = 0.0
        self.asked = 0
        self.members = members

    async def send(self, _request: Any, _deadline: float) -> Outcome:
        self.asked += 1
        return _granted(f"t{self.asked}", **self.members)

    async def close(self) -> None:
        pass

    connections_opened = connections_reused = 0


@pytest.mark.parametrize(
    ("expires_in", "good_at", "over_at"),
    [
        (3600, 3569, 3570),
        ("3600", 3569, 3570),
        (100, 89.9, 90),
        (None, 269.9, 270),
        (True, 269.9, 270),
        ("soon", 269.9, 270),
        (1e12, 86_369, 86_370),
    ],
)
async def test_a_token_is_renewed_before_it_expires(
    expires_in: Any, good_at: float, over_at: float
) -> None:
    server = _Server(expires_in=expires_in)
    authenticator = Authenticator(server, lambda: server.time)
    credentials = Credentials("oauth2", token_url="https://t.example/")

    async def header(version: int = 1) -> Any:
        return await authenticator.header("ep_1", version, credentials, 5)

    assert await header() == "Bearer t1"
    server.time = good_at
    assert await header() == "Bearer t1"
    server.time = over_at
    assert await header() == "Bearer t2"
    assert await header(version=2) == "Bearer t3"  # the endpoint was changed


async def test_a_token_without_life_is_used_once() -> None:
    server = _Server(expires_in=-5)
    authenticator = Authenticator(server, lambda: server.time)
    credentials = Credentials("oauth2", token_url="https://t.example/")
    for number in (1, 2):
        assert await authenticator.header("ep_1", 1, credentials, 5) == f"Bearer t{number}"


def test_credentials_show_nothing_of_themselves() -> None:
    assert SECRET not in repr(Credentials("basic", username="us", password=SECRET))
