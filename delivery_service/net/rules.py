"""The guard's rules, as the settings ask for them: the same at registration and at each attempt."""

from __future__ import annotations

from delivery_service.net.addresses import SERVICE_PORTS
from delivery_service.net.guard import GuardPolicy
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
