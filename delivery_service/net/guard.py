"""The SSRF guard: which URLs and addresses a delivery may go to. Pure, without I/O.

URLs are judged twice: when an endpoint is registered and again before each attempt. Whatever the
text, the answer is a `CheckedUrl` or `BlockedUrl`. Only the rebuilt URL of a `CheckedUrl` is
ever used, so that no other parser can read the original text in another way.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from urllib.parse import quote

import idna

from delivery_service.net.addresses import (
    LOW_PORTS,
    METADATA_NETWORKS,
    PRIVATE_NETWORKS,
    SERVICE_PORTS,
    IPAddress,
    IPNetwork,
    find_network,
    table_rule,
    unmapped,
)
from wire.errors import SurehookError

MAX_URL_LENGTH = 2048
"""Characters, of the text as registered and of the URL rebuilt from it."""

LOCAL_SUFFIXES = (".internal", ".local", ".localhost", ".svc")
"""Names that only mean something inside a network."""

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?]*)([^?]*)(\?.*)?", re.DOTALL)
_BRACKETED = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::([0-9]{1,5}))?", re.ASCII)
_HOST_PORT = re.compile(r"([^:\[\]]+)(?::([0-9]{1,5}))?", re.ASCII)
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?", re.ASCII)
_NUMERIC_LABEL = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*", re.ASCII)
_DOTTED_QUAD = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){3}", re.ASCII)
# Everything printable in ASCII stays as registered; only other characters are percent-encoded.
_KEPT_IN_TARGET = "!\"#$%&'()*+,/:;<=>?@[]^`{|}~"
_DEFAULT_PORTS = {"http": 80, "https": 443}


class BlockedUrl(SurehookError):
    """The guard refused a URL or an address.

    ``rule`` is a stable code. The text is for operators: it names the rule, and the setting that
    changes it. ``public_reason`` is what a tenant may read: the mistake in the URL's own text, or
    just "blocked" where more would describe the platform's network.
    """

    def __init__(self, rule: str, message: str, *, public: bool = False) -> None:
        super().__init__(message)
        self.rule = rule
        self.public_reason = message if public else "blocked"


@dataclass(frozen=True, slots=True)
class GuardPolicy:
    """What the operator decides; a tenant can't.

    ``allow_http`` permits plain http. ``allow_private_networks`` permits loopback and private
    addresses (never link-local, multicast or metadata ones) and local names such as ``localhost``.
    ``allowed_networks`` permits addresses whatever the table says, ``refused_networks`` refuses
    them whatever else is set. ``nat64_prefixes`` are the platform's own: addresses in them are
    judged by the IPv4 address they embed (RFC 6052). ``allowed_hosts`` permits local names: exact
    (``receiver``) or, with a leading dot, everything below (``.svc``); the addresses of such a name
    are still judged. ``allowed_ports`` and ``refused_ports`` change the rule for ports; a port in
    both is allowed.
    """

    allow_http: bool = False
    allow_private_networks: bool = False
    allowed_networks: tuple[IPNetwork, ...] = ()
    refused_networks: tuple[IPNetwork, ...] = ()
    nat64_prefixes: tuple[IPv6Network, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    allowed_ports: frozenset[int] = frozenset()
    refused_ports: frozenset[int] = field(default=SERVICE_PORTS)

    def __post_init__(self) -> None:
        """Refuse prefixes that can't embed an IPv4 address."""
        for prefix in self.nat64_prefixes:
            if prefix.prefixlen not in {32, 40, 48, 56, 64, 96}:
                raise ValueError(
                    f"nat64_prefixes: {prefix} must have a length of 32, 40, 48, 56, 64 or 96"
                )


@dataclass(frozen=True, slots=True)
class CheckedUrl:
    """A URL that passed, rebuilt from its checked parts.

    ``host`` is ASCII, lower case and without brackets. ``target`` is path and query, the query
    exactly as registered. ``address`` is set if the host is a literal address.
    """

    url: str
    scheme: str
    host: str
    port: int
    target: str
    address: IPAddress | None = None


def check_url(url: str, policy: GuardPolicy) -> CheckedUrl:
    """Judge a URL and rebuild it.

    Raises ``BlockedUrl`` for every text that isn't acceptable, and nothing else. Names are not
    resolved here: `check_address` judges what they resolve to.
    """
    _check_characters(url)
    match = _URL.fullmatch(url)
    if match is None:
        raise _malformed("it must read https://host/path")
    scheme, authority, path, query = match.groups()
    scheme = scheme.lower()
    _check_scheme(scheme, policy)
    host, port_text = _split_authority(authority)
    port = int(port_text) if port_text else _DEFAULT_PORTS[scheme]
    _check_port(port, policy)
    address: IPAddress | None = None
    if authority.startswith("["):
        address = _ipv6_literal(host)
    elif _DOTTED_QUAD.fullmatch(host):
        address = _ipv4_literal(host)
    if address is None:
        host = _check_name(host, policy)
    else:
        check_address(address, policy)
        host = str(address)
    target = (path or "/") + (query if query and query != "?" else "")
    return _rebuild(scheme, host, port, quote(target, safe=_KEPT_IN_TARGET), address)


def check_address(address: IPAddress | str, policy: GuardPolicy) -> IPAddress:
    """Judge an address to connect to and return it, parsed.

    Raises ``BlockedUrl`` naming the network that refuses it. Scope ids are always refused.
    """
    try:
        parsed = ip_address(address) if isinstance(address, str) else address
    except ValueError:
        raise BlockedUrl("address", f"{address!r} is not an IP address") from None
    if isinstance(parsed, IPv6Address) and parsed.scope_id is not None:
        raise BlockedUrl(
            "scope_id", f"the address {parsed} has a scope id; no setting permits that"
        )
    effective = unmapped(parsed, policy.nat64_prefixes)
    refused = find_network(effective, policy.refused_networks) or find_network(
        parsed, policy.refused_networks
    )
    if refused:
        raise BlockedUrl(
            "refused_networks",
            f"the address {parsed} is in {refused}, which the setting refused_networks refuses",
        )
    if find_network(effective, policy.allowed_networks):
        return parsed
    rule = table_rule(effective)
    if rule is None:
        return parsed
    setting = "allowed_networks"
    if find_network(effective, PRIVATE_NETWORKS) and not find_network(effective, METADATA_NETWORKS):
        if policy.allow_private_networks:
            return parsed
        setting = "allowed_networks or allow_private_networks"
    shown = f"{parsed} (which stands for {effective})" if effective != parsed else str(parsed)
    raise BlockedUrl(
        "address",
        f"the SSRF guard refuses the address {shown}: {rule}; the operator can permit it with the"
        f" setting {setting}",
    )


def display_url(url: str) -> str:
    """Return a URL for logs: without query, fragment and user information, printable, cut at 300.

    Takes any text and never raises.
    """
    text = re.split(r"[?#]", url, maxsplit=1)[0]
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "", text
    authority, slash, path = rest.partition("/")
    text = scheme + separator + authority.rpartition("@")[2] + slash + path
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[:301])
    return text if len(text) <= 300 else text[:299] + "…"


def _malformed(what: str) -> BlockedUrl:
    return BlockedUrl("url", f"the URL is not acceptable: {what}", public=True)


def _check_characters(url: str) -> None:
    if len(url) > MAX_URL_LENGTH:
        raise _malformed(f"it is longer than {MAX_URL_LENGTH} characters")
    for character in url:
        if character.isascii():
            if not "!" <= character <= "~":
                raise _malformed(f"it contains the control or space character {character!r}")
        elif unicodedata.category(character)[0] in "CZ":
            raise _malformed(f"it contains the invisible character U+{ord(character):04X}")
    if "\\" in url:
        raise _malformed("it contains a backslash")
    if "#" in url:
        raise _malformed("it has a fragment (#…)")


def _check_scheme(scheme: str, policy: GuardPolicy) -> None:
    if scheme == "https" or (scheme == "http" and policy.allow_http):
        return
    if scheme == "http":
        raise BlockedUrl(
            "scheme",
            "the scheme must be https (the operator can permit http with the setting allow_http)",
            public=True,
        )
    raise BlockedUrl("scheme", "the scheme must be https", public=True)


def _split_authority(authority: str) -> tuple[str, str | None]:
    if "@" in authority:
        raise _malformed("it contains user information (user:password@); use a custom header")
    if "%" in authority:
        raise _malformed("its host contains a percent sign")
    match = _BRACKETED.fullmatch(authority) or _HOST_PORT.fullmatch(authority)
    if match is None:
        raise _malformed("its host or port can't be read")
    return match[1], match[2]


def _check_port(port: int, policy: GuardPolicy) -> None:
    allowed = port in LOW_PORTS or (1024 <= port <= 65535 and port not in policy.refused_ports)
    if not allowed and not (port in policy.allowed_ports and 1 <= port <= 65535):
        raise BlockedUrl(
            "port",
            f"port {port} is not allowed: use 80, 443, or one from 1024 on that no well-known"
            " service uses (the operator can permit it with the setting allowed_ports)",
            public=True,
        )


def _ipv6_literal(host: str) -> IPv6Address:
    try:
        return IPv6Address(host)
    except ValueError:
        raise _malformed("the brackets don't hold an IPv6 address") from None


def _ipv4_literal(host: str) -> IPv4Address:
    try:
        return IPv4Address(host)
    except ValueError:
        raise _malformed("its host looks like an IPv4 address but isn't one") from None


def _check_name(host: str, policy: GuardPolicy) -> str:
    """Return the ASCII form of a name, without its trailing dot."""
    if not host.isascii():
        try:
            host = idna.encode(host, uts46=True).decode("ascii")
        except UnicodeError:  # IDNAError is one
            raise _malformed("its host is not a valid internationalised name") from None
    name = host.lower().removesuffix(".")
    labels = name.split(".")
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise _malformed("its host is not a valid name")
    if _NUMERIC_LABEL.fullmatch(labels[-1]):
        raise _malformed(
            "its host ends in a number; write an address as four decimal numbers without"
            " leading zeros"
        )
    local = len(labels) == 1 or name.endswith(LOCAL_SUFFIXES)
    if local and not policy.allow_private_networks and not _is_allowed_host(name, policy):
        raise BlockedUrl(
            "host",
            f"the name {name} is local to a network; the operator can permit it with the setting"
            " allowed_hosts (or allow_private_networks)",
        )
    return name


def _is_allowed_host(name: str, policy: GuardPolicy) -> bool:
    return any(
        name.endswith(allowed) if allowed.startswith(".") else name == allowed
        for allowed in policy.allowed_hosts
    )


def _rebuild(
    scheme: str, host: str, port: int, target: str, address: IPAddress | None
) -> CheckedUrl:
    authority = f"[{host}]" if isinstance(address, IPv6Address) else host
    if port != _DEFAULT_PORTS[scheme]:
        authority = f"{authority}:{port}"
    url = f"{scheme}://{authority}{target}"
    if len(url) > MAX_URL_LENGTH:
        raise _malformed(f"it is longer than {MAX_URL_LENGTH} characters once encoded")
    return CheckedUrl(url, scheme, host, port, target, address)
