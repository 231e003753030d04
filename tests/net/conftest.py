"""Transports under test, and proof that nothing is left to the event loop's exception handler."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_network
from typing import Any

import pytest
import trustme

from delivery_service.net.guard import GuardPolicy
from delivery_service.net.httpx_transport import HttpxTransport
from delivery_service.net.transport import AiohttpTransport, Transport

LOOPBACK = GuardPolicy(allow_http=True, allowed_networks=(ip_network("127.0.0.0/8"),))

MakeTransport = Callable[..., Any]


def names(**table: str | list[str]) -> Callable[[str], Any]:
    """A resolver's answers: ``hooks_example="127.0.0.1"``; other names are at 127.0.0.1."""

    async def lookup(host: str) -> list[str]:
        answer = table.get(host.replace(".", "_"), "127.0.0.1")
        return [answer] if isinstance(answer, str) else answer

    return lookup


TRANSPORTS = {"aiohttp": AiohttpTransport, "httpx": HttpxTransport}


@pytest.fixture(scope="session")
def system_tls() -> ssl.SSLContext:
    """Built once, as it takes a while."""
    return ssl.create_default_context()


@pytest.fixture(params=TRANSPORTS)
async def make_transport(
    request: pytest.FixtureRequest, system_tls: ssl.SSLContext
) -> AsyncIterator[MakeTransport]:
    """Make transports of one kind that are closed after the test."""
    async with making(TRANSPORTS[request.param], system_tls) as make:
        yield make


@pytest.fixture
async def make_aiohttp(system_tls: ssl.SSLContext) -> AsyncIterator[MakeTransport]:
    """Make transports of the worker's kind."""
    async with making(AiohttpTransport, system_tls) as make:
        yield make


@asynccontextmanager
async def making(kind: Callable[..., Any], tls: ssl.SSLContext) -> AsyncIterator[MakeTransport]:
    made: list[Transport] = []
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))

    def make(policy: GuardPolicy = LOOPBACK, **options: Any) -> Transport:
        transport = kind(policy, **({"lookup": names(), "tls": tls} | options))
        made.append(transport)
        return transport

    yield make
    for transport in made:
        await transport.close()
    # What receivers under test complain about is theirs, not the transport's.
    assert [c for c in complaints if "client_connected_cb" not in c["message"]] == []


@pytest.fixture
async def transport(make_transport: MakeTransport) -> Transport:
    return make_transport()


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def trusting(authority: trustme.CA) -> ssl.SSLContext:
    """A client context that trusts the test's authority."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context
