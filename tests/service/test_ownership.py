"""Proof of ownership: nothing is sent to a URL before its receiver has answered a challenge."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from delivery_service.bootstrap import make_transport
from tests.service.caller import Api
from tests.support.receiver import Answer, Received, Receiver, challenge_of, echo_challenge
from wire import verify
from wire.envelope import parse_timestamp


@pytest.fixture
def options() -> dict[str, object]:
    return {"require_ownership_proof": True, "allow_private_networks": True}


def _as_member(request: Received) -> Answer:
    return Answer(body=json.dumps({"challenge": challenge_of(request)}).encode())


def _as_json_text(request: Received) -> Answer:
    return Answer(201, body=json.dumps(challenge_of(request)).encode())


async def _made(api: Api, receiver: Receiver, **members: Any) -> tuple[dict[str, Any], str]:
    made = await api.endpoint(url=receiver.url("/in"), **members)
    return made, f"/v1/endpoints/{made['id']}"


@pytest.mark.parametrize("answer", [echo_challenge, _as_member, _as_json_text])
async def test_an_endpoint_is_enabled_by_its_receiver(
    api: Api, receiver: Receiver, answer: Any
) -> None:
    receiver.script("/in", answer)
    bearer = {"type": "bearer", "token": "tok"}
    made, path = await _made(api, receiver, headers={"X-Own": "1"}, authentication=bearer)
    assert (made["status"], made["disabled_reason"]) == ("disabled", "unverified")
    assert made["verified_at"] is None
    # What is published meanwhile is there, with the reason why it was not sent.
    before = (await api.publish())["deliveries"][0]
    shown = await api.ok("GET", f"/v1/deliveries/{before}")
    assert (shown["status"], shown["reason"]) == ("skipped", "endpoint_unverified")
    verified = await api.ok("POST", f"{path}/verify", key="tenant")
    assert (verified["status"], verified["disabled_reason"]) == ("enabled", None)
    assert verified["verified_at"] == "2026-11-29T10:00:00Z"
    (request,) = receiver.requests
    body = json.loads(request.body)
    assert body["type"] == "surehook.challenge"
    assert request.header("X-Own") == "1"
    assert request.header("authorization") == "Bearer tok"
    at = parse_timestamp(body["timestamp"])
    verify(made["secret"], dict(request.headers), request.body, now=at)
    after = (await api.publish())["deliveries"][0]
    assert (await api.ok("GET", f"/v1/deliveries/{after}"))["status"] == "pending"
    await api.ok("POST", f"/v1/deliveries/{before}/redeliver")
    log = (await api.ok("GET", "/v1/audit-log"))["items"]
    assert "endpoint.verified" in [entry["action"] for entry in log]


@pytest.mark.parametrize(
    "answer",
    [
        Answer(200),
        Answer(200, body=b"ok"),
        Answer(200, body=b"\xff"),
        Answer(200, body=b"[" * 3000),
        Answer(200, body=b'{"challenge": 1}'),
        lambda request: Answer(200, body=request.body),  # whoever echoes all proves nothing
        lambda request: Answer(400, body=challenge_of(request).encode()),
        lambda request: Answer(
            302, body=challenge_of(request).encode(), headers=(("location", "/other"),)
        ),
        lambda request: Answer(200, body=challenge_of(request)[:-1].encode()),
        Answer(raw=b""),
    ],
)
async def test_what_is_no_proof(sqlite_api: Api, receiver: Receiver, answer: Any) -> None:
    api = sqlite_api
    receiver.script("/in", answer)
    _endpoint, path = await _made(api, receiver)
    problem = await api.problem(409, "POST", f"{path}/verify")
    assert problem["type"].endswith(":ownership-unproven")
    shown = await api.ok("GET", path)
    assert (shown["status"], shown["verified_at"]) == ("disabled", None)
    for key in ("admin", "tenant"):
        problem = await api.problem(409, "POST", f"{path}/enable", key=key)
        assert problem["type"].endswith(":ownership-unproven")


async def test_each_challenge_is_another(sqlite_api: Api, receiver: Receiver) -> None:
    _endpoint, path = await _made(sqlite_api, receiver)
    for _ in range(2):
        await sqlite_api.problem(409, "POST", f"{path}/verify")
    first, second = (challenge_of(request) for request in receiver.requests)
    assert first != second
    assert len(first) >= 43  # 256 bits


async def test_another_url_needs_another_proof(api: Api, receiver: Receiver) -> None:
    receiver.script("/in", echo_challenge)
    _endpoint, path = await _made(api, receiver)
    await api.ok("POST", f"{path}/verify")
    pending = await api.delivery()
    same = await api.ok("PATCH", path, json={"url": receiver.url("/in"), "description": "x"})
    assert same["status"] == "enabled"
    moved = await api.ok("PATCH", path, json={"url": receiver.url("/other")})
    assert (moved["status"], moved["disabled_reason"]) == ("disabled", "unverified")
    assert moved["verified_at"] is None
    shown = await api.ok("GET", f"/v1/deliveries/{pending}")
    assert (shown["status"], shown["reason"]) == ("skipped", "endpoint_unverified")
    await api.problem(409, "POST", f"{path}/verify")


async def test_a_proof_does_not_enable_what_was_disabled_for_another_reason(
    api: Api, receiver: Receiver
) -> None:
    receiver.script("/in", echo_challenge)
    _endpoint, path = await _made(api, receiver)
    await api.ok("POST", f"{path}/verify")
    await api.ok("POST", f"{path}/disable")
    shown = await api.ok("POST", f"{path}/verify", key="tenant")
    assert (shown["status"], shown["disabled_reason"]) == ("disabled", "operator")
    await api.problem(409, "POST", f"{path}/enable", key="tenant")
    assert (await api.ok("POST", f"{path}/enable"))["status"] == "enabled"


async def test_the_guard_judges_challenges_too(sqlite_api: Api, receiver: Receiver) -> None:
    api = sqlite_api
    _endpoint, path = await _made(api, receiver)
    context = api.app.state.surehook
    strict = context.settings.model_copy(update={"allow_private_networks": False})
    api.app.state.surehook = replace(context, transport=lambda: make_transport(strict))
    problem = await api.problem(409, "POST", f"{path}/verify", key="tenant")
    assert "blocked" in problem["detail"]
    assert "127.0.0.1" not in problem["detail"]
    assert receiver.requests == []
