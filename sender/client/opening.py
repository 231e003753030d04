"""What a client is made with: its options, checked, as arguments of httpx's clients."""

from __future__ import annotations

import random
import ssl
import time
from collections.abc import Callable
from typing import Any, TypedDict

import httpx

from sender.client.exchange import Policy
from sender.errors import ClientError
from wire.version import VERSION

MAX_KEY_LENGTH = 256


class Options(TypedDict, total=False):
    """What both clients take. Durations are in seconds.

    ``timeout`` (30) bounds a call with all its tries, ``try_timeout`` (10) one try, ``max_wait``
    (10) one pause between tries, also when the service's ``Retry-After`` asks for more.
    ``retries`` (4): most repeats of a call, 0 for none.

    ``trust_env`` (False): heed HTTP_PROXY, SSL_CERT_FILE and the like. ``verify`` (True): check
    certificates; an `ssl.SSLContext` sets authorities and client certificates.

    ``clock``, ``wall_clock`` and ``chance`` replace time and randomness in tests; see
    `sender.client.exchange.Policy`.
    """

    timeout: float
    try_timeout: float
    retries: int
    max_wait: float
    trust_env: bool
    verify: bool | ssl.SSLContext
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    chance: Callable[[], float]


def prepared(base_url: str, key: str, options: Options) -> tuple[Policy, dict[str, Any]]:
    """Return the policy, and what both of httpx's clients are made with."""
    policy = Policy(
        timeout=options.get("timeout", 30.0),
        try_timeout=options.get("try_timeout", 10.0),
        retries=options.get("retries", 4),
        max_wait=options.get("max_wait", 10.0),
        clock=options.get("clock", time.monotonic),
        wall_clock=options.get("wall_clock", time.time),
        chance=options.get("chance", random.random),
    )
    unknown = options.keys() - Options.__annotations__.keys()
    if unknown:
        raise ClientError(f"{', '.join(sorted(unknown))}: no such option")
    headers = {
        "authorization": f"Bearer {_checked_key(key)}",
        "accept": "application/json",
        # What is not compressed can't expand without limit.
        "accept-encoding": "identity",
        "user-agent": f"surehook-client/{VERSION}",
    }
    return policy, {
        "base_url": _checked_url(base_url),
        "headers": headers,
        "trust_env": options.get("trust_env", False),
        "verify": options.get("verify", True),
        "follow_redirects": False,
    }


def _checked_key(key: str) -> str:
    is_usable = isinstance(key, str) and key.isascii() and key.isprintable() and " " not in key
    if not is_usable or not 1 <= len(key) <= MAX_KEY_LENGTH:
        raise ClientError("key must be an API key: visible ASCII characters, without spaces")
    return key


def _checked_url(base_url: str) -> httpx.URL:
    try:
        url = httpx.URL(base_url)
    except (httpx.InvalidURL, TypeError):
        url = httpx.URL("")
    # Not shown in the message: it may hold a password.
    if url.scheme not in ("http", "https") or not url.host or url.userinfo:
        raise ClientError("base_url must be like https://host/path, without user information")
    if url.query or url.fragment:
        raise ClientError("base_url must have no query and no fragment")
    return url
