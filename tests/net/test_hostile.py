"""Hostile receivers: each outcome is named, and 200 of them at once leave the transport healthy."""

from __future__ import annotations

import asyncio

import pytest

from delivery_service.net.httpx_transport import HttpxTransport
from delivery_service.net.responses import safe_text
from delivery_service.net.transport import RESPONSE_CAP, PreparedRequest
from delivery_service.policy.outcome import Outcome
from tests.net.receivers import HOSTILE, receiver

REQUEST_BODY = b'{"n":1.10}'
# More than the kernel's buffers of a loopback connection take.
LARGE_BODY = b"x" * 8_000_000


def request_to(url: str, name: str = "") -> PreparedRequest:
    body = LARGE_BODY if name == "never reading" else REQUEST_BODY
    return PreparedRequest(url, {"content-type": "application/json"}, body)


def check(name: str, outcome: Outcome) -> None:
    _, kind, _, truncated = HOSTILE[name]
    assert outcome.kind.value in kind.split(" or "), outcome
    assert outcome.response_truncated == truncated
    assert outcome.may_have_arrived
    assert len(outcome.response_body) <= RESPONSE_CAP
    assert (outcome.error is None) == outcome.delivered
    safe_text(outcome.response_body).encode()
    texts = [text for header in outcome.response_headers for text in header]
    for part in (outcome.error or "", *texts):
        assert "\x00" not in part
        part.encode()
        assert len(part) <= 8192


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_receiver(make_transport, name):
    behaviour, _, deadline, _ = HOSTILE[name]
    transport = make_transport()
    # "never reading" holds its body in memory, and httpx is the slower alternative, which the
    # worker doesn't use: fewer of those.
    count = 10 if name == "never reading" else 200
    if isinstance(transport, HttpxTransport):
        count, deadline = 5, deadline if deadline > 5 else 0.7
    async with receiver(behaviour) as hostile, receiver() as good:
        outcomes = await asyncio.gather(
            *(transport.send(request_to(hostile.url(), name), deadline) for _ in range(count))
        )
        for outcome in outcomes:
            check(name, outcome)
        assert (await transport.send(request_to(good.url()), 5.0)).delivered


@pytest.mark.parametrize("name", ["drip body", "never answering", "never reading", "endless body"])
async def test_connections_to_hostile_receivers_are_closed_at_once(make_transport, name):
    behaviour, _, _, _ = HOSTILE[name]
    transport = make_transport()
    async with receiver(behaviour) as hostile:
        await asyncio.gather(
            *(transport.send(request_to(hostile.url(), name), 0.3) for _ in range(5))
        )
        assert open_connections(transport) == 0


def open_connections(transport) -> int:
    if isinstance(transport, HttpxTransport):
        clients = transport._clients.values()
        return sum(len(client._transport._pool._connections) for client in clients)
    connector = transport._connector
    return len(connector._acquired) + sum(map(len, connector._conns.values()))
