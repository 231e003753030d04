"""The guard's rules and the transport, as the settings ask for them: the same at registration and
at each attempt."""

from __future__ import annotations

from delivery_service.net.addresses import SERVICE_PORTS
from delivery_service.net.guard import GuardPolicy
from delivery_service.net.httpx_transport import HttpxTransport
from delivery_service.net.transport import AiohttpTransport, Transport
from delivery_service.settings import Settings


def guard_policy(settings: Settings) -> GuardPolicy:
    """Return the rules for URLs and addresses."""
    return GuardPolicy(
        allow_http=settings.allow_http,
        allow_private_networks=settings.allow_private_networks,
        allowed_networks=tuple(settings.allowed_networks),
        refused_networks=tuple(settings.refused_networks),
        nat64_prefixes=tuple(settings.nat64_prefixes),
        allowed_hosts=tuple(settings.allowed_hosts),
        allowed_ports=frozenset(settings.allowed_ports),
        refused_ports=SERVICE_PORTS | frozenset(settings.refused_ports),
    )


def make_transport(settings: Settings) -> Transport:
    """Return a transport for as many requests in flight as a worker has."""
    make = AiohttpTransport if settings.transport == "aiohttp" else HttpxTransport
    return make(
        guard_policy(settings),
        max_connections=settings.concurrency,
        response_cap=settings.response_cap,
        proxy=settings.egress_proxy,
    )
