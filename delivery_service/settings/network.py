"""The options about where requests may go, and how they get there."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode

Network = IPv4Network | IPv6Network
Port = Annotated[int, Field(ge=1, le=65535)]

_EXAMPLE = "separated by commas"


class NetworkSettings(BaseSettings):
    """What an operator permits endpoints, and a tenant can't."""

    allow_http: bool = Field(
        True, description="Whether endpoints may have `http://` URLs; production wants false."
    )
    allow_private_networks: bool = Field(
        False,
        description="Whether endpoints may be on loopback and private addresses. For development"
        " only: it lets every tenant reach the platform's network.",
    )
    allowed_networks: Annotated[list[Network], NoDecode] = Field(
        default_factory=list,
        description="Networks that endpoints may be in whatever the guard's table says,"
        f" {_EXAMPLE}: `10.20.0.0/16`. For receivers of your own; far narrower than"
        " `allow_private_networks`.",
    )
    refused_networks: Annotated[list[Network], NoDecode] = Field(
        default_factory=list,
        description=f"Networks that are refused beside those of the guard's table, {_EXAMPLE};"
        " stronger than every permission.",
    )
    nat64_prefixes: Annotated[list[IPv6Network], NoDecode] = Field(
        default_factory=list,
        description=f"NAT64 prefixes of your network (RFC 6052), {_EXAMPLE}: addresses in them are"
        " judged by the IPv4 address that they embed.",
    )
    allowed_hosts: Annotated[list[str], NoDecode] = Field(
        default_factory=list,
        description=f"Local names that endpoints may have, {_EXAMPLE}: `receiver`, or `.svc` for"
        " everything below it. Their addresses are still judged.",
    )
    allowed_ports: Annotated[list[Port], NoDecode] = Field(
        default_factory=list,
        description=f"Ports that endpoints may have beside 80, 443, 8080, 8443 and most from 1024"
        f" on, {_EXAMPLE}; stronger than `refused_ports`.",
    )
    refused_ports: Annotated[list[Port], NoDecode] = Field(
        default_factory=list,
        description=f"Ports that are refused beside those of well-known services, {_EXAMPLE}.",
    )
    transport: Literal["aiohttp", "httpx"] = Field(
        "aiohttp", description="HTTP client of the workers; `httpx` needs several times the CPU."
    )
    egress_proxy: str | None = Field(
        None,
        pattern=r"^https?://[^/]+/?$",
        description="URL of a proxy that all requests to receivers go through. It then resolves"
        " names, and which addresses they may lead to is its job. Proxy variables of the"
        " environment are never read.",
    )

    @field_validator(
        "allowed_networks",
        "refused_networks",
        "nat64_prefixes",
        "allowed_hosts",
        "allowed_ports",
        "refused_ports",
        mode="before",
    )
    @classmethod
    def _split_lists(cls, value: Any) -> Any:
        return split(value)

    @field_validator("nat64_prefixes")
    @classmethod
    def _nat64(cls, value: list[IPv6Network]) -> list[IPv6Network]:
        for prefix in value:
            if prefix.prefixlen not in {32, 40, 48, 56, 64, 96}:
                raise ValueError(f"{prefix} must have a length of 32, 40, 48, 56, 64 or 96")
        return value


def split(value: Any) -> Any:
    """Read a list that is given as text, separated by commas."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value
