"""How requests show a receiver who we are: basic, bearer, or OAuth 2 client credentials.

Tokens are fetched through the transport that also delivers, so the guard judges the token URL and
the address behind it at each request. Nothing that an authorisation server says is kept or shown
but its status: an answer may quote the credentials.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus, urlencode
from weakref import WeakValueDictionary

from delivery_service.net.transport import PreparedRequest, Transport
from delivery_service.policy.outcome import Outcome, OutcomeKind

KEPT = 10_000
"""Tokens kept in memory."""
DEFAULT_LIFE = 300.0
"""Seconds that a token is used whose life the server does not tell (RFC 6749 §5.1 lets it)."""
LONGEST_LIFE = 86_400.0
MARGIN = 0.1
"""Part of its life, at most `LONGEST_MARGIN` seconds, before whose end a token is renewed."""
LONGEST_MARGIN = 30.0
_TOKEN = re.compile(r"[\x21-\x7e]{1,3500}")


@dataclass(frozen=True, slots=True)
class Credentials:
    """What an endpoint's requests authenticate with; ``type`` says which members are set."""

    type: str
    username: str = ""
    password: str = ""
    token: str = ""
    token_url: str = ""
    client_id: str = ""
    client_secret: str = ""
    scope: str | None = None
    audience: str | None = None
    credentials_in: str = "header"

    def __repr__(self) -> str:
        return f"<Credentials {self.type}>"

    def fixed_header(self) -> str | None:
        """The Authorization header, if no token must be fetched for it."""
        if self.type == "basic":
            pair = f"{self.username}:{self.password}".encode()
            return f"Basic {base64.b64encode(pair).decode()}"
        return f"Bearer {self.token}" if self.type == "bearer" else None


@dataclass(frozen=True, slots=True)
class _Kept:
    version: int
    token: str
    until: float


class Authenticator:
    """Makes Authorization headers. Keeps the token of an endpoint until it expires, the endpoint
    changes, or its receiver answers 401.

    ``monotonic`` is a clock in seconds.
    """

    def __init__(self, transport: Transport, monotonic: Callable[[], float]) -> None:
        self._transport = transport
        self._monotonic = monotonic
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        # Each lives as long as somebody holds it or waits for it.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def header(
        self, endpoint_id: str, version: int, credentials: Credentials, deadline: float
    ) -> str | Outcome:
        """Return the header's value, or the outcome of an attempt that could not get one.

        ``version`` is that of the endpoint's row. ``deadline`` is in seconds.
        """
        fixed = credentials.fixed_header()
        if fixed is not None:
            return fixed
        started = self._monotonic()
        token: str | Outcome | None = self._valid(endpoint_id, version)
        if token is None:
            try:
                async with asyncio.timeout(deadline):
                    token = await self._fetch_once(endpoint_id, version, credentials, deadline)
            except TimeoutError:
                return _refused("timeout", self._monotonic() - started)
        return token if isinstance(token, Outcome) else f"Bearer {token}"

    def refused(self, endpoint_id: str) -> None:
        """Note that the receiver answered 401: the next attempt fetches a fresh token."""
        self._kept.pop(endpoint_id, None)

    def _valid(self, endpoint_id: str, version: int) -> str | None:
        kept = self._kept.get(endpoint_id)
        if kept is None or kept.version != version or self._monotonic() >= kept.until:
            return None
        self._kept.move_to_end(endpoint_id)
        return kept.token

    async def _fetch_once(
        self, endpoint_id: str, version: int, credentials: Credentials, deadline: float
    ) -> str | Outcome:
        """Fetch a token, one request at a time for an endpoint: the others use what it brings."""
        async with self._locks.setdefault(endpoint_id, asyncio.Lock()):
            token = self._valid(endpoint_id, version)
            if token is not None:
                return token
            return await self._fetch(endpoint_id, version, credentials, deadline)

    async def _fetch(
        self, endpoint_id: str, version: int, credentials: Credentials, deadline: float
    ) -> str | Outcome:
        answer = await self._transport.send(_token_request(credentials), deadline)
        if not answer.delivered:
            status = answer.status_code
            what = answer.public_error if status is None else f"status {status}"
            return _refused(what or answer.kind.value, answer.duration)
        given = _parsed(answer)
        if given is None:
            return _refused("the answer holds no bearer token", answer.duration)
        token, life = given
        until = self._monotonic() + life - min(life * MARGIN, LONGEST_MARGIN)
        self._kept[endpoint_id] = _Kept(version, token, until)
        self._kept.move_to_end(endpoint_id)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return token


def _refused(what: str, duration: float) -> Outcome:
    error = f"no token for the receiver: {what}"
    return Outcome(OutcomeKind.AUTHENTICATION, duration=duration, error=error)


def _token_request(credentials: Credentials) -> PreparedRequest:
    """A token request of RFC 6749 §4.4.2, with the client's password as in §2.3.1."""
    form = {"grant_type": "client_credentials"}
    if credentials.scope:
        form["scope"] = credentials.scope
    if credentials.audience:
        form["audience"] = credentials.audience
    headers = {
        "content-type": "application/x-www-form-urlencoded",
        "accept": "application/json",
        "accept-encoding": "identity",
    }
    if credentials.credentials_in == "body":
        form |= {"client_id": credentials.client_id, "client_secret": credentials.client_secret}
    else:
        pair = f"{quote_plus(credentials.client_id)}:{quote_plus(credentials.client_secret)}"
        headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    return PreparedRequest(credentials.token_url, headers, urlencode(form).encode())


def _parsed(answer: Outcome) -> tuple[str, float] | None:
    """The token of an answer and its life in seconds; None if it is no token response."""
    try:
        given: Any = json.loads(answer.response_body.decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(given, Mapping):
        return None
    token, kind = given.get("access_token"), given.get("token_type", "Bearer")
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        return None
    if not isinstance(kind, str) or kind.lower() != "bearer":
        return None
    return token, _life(given.get("expires_in"))


def _life(expires_in: Any) -> float:
    # Some servers send the number as text.
    if isinstance(expires_in, str) and re.fullmatch(r"[0-9]{1,12}", expires_in, re.ASCII):
        expires_in = int(expires_in)
    if isinstance(expires_in, bool) or not isinstance(expires_in, int | float):
        return DEFAULT_LIFE
    return float(min(max(expires_in, 0), LONGEST_LIFE))
