"""The verifier: raw request in, `Message` out, or one family of errors.

The order is fixed, and nothing is claimed before its end: size → headers → timestamp →
signature → key → what is expected (which parses the body, if it has to).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, Self, TypeAlias, TypedDict, Unpack
from urllib.parse import parse_qsl

from receiver import providers
from receiver.errors import ConfigurationError, RequestError, SignatureError, TooLargeError
from receiver.keys import KeyRule, scoped
from receiver.message import Message
from receiver.paths import find
from receiver.providers import Provider
from receiver.request import RawHeaders, Request
from receiver.schemes import Check, same_text
from wire.errors import SecretError
from wire.secrets import Secret
from wire.signature import STANDARD_HEADER_NAMES, HeaderNames

__all__ = ["DEFAULT_TOLERANCE", "Verifier"]

DEFAULT_TOLERANCE: Final = timedelta(minutes=5)
"""How far a signed timestamp may be from now, in both directions: what the libraries of Standard
Webhooks, Stripe and Slack use."""

Secrets: TypeAlias = str | bytes | Secret | Iterable[str | bytes | Secret]
Expected: TypeAlias = str | int | Iterable[str | int] | None


class Settings(TypedDict, total=False):
    """What all verifiers can be told; see `Verifier`."""

    endpoint: str
    types: Expected
    applications: Expected
    tenants: Expected
    keys: KeyRule
    max_body: int
    tolerance: timedelta
    clock: Callable[[], float]


class Verifier:
    """Verifies the deliveries of one provider to one endpoint.

    Made by one of the constructors named after the providers, or of any
    `receiver.providers.Provider`. They share these settings:

    `endpoint`: a name for where this is received; messages are told apart by source, endpoint and
    id. `types`, `applications`, `tenants`: what is expected here; anything else is a
    `RequestError` (400). `keys`: a `KeyRule` in place of the provider's own. `max_body`: bytes.
    `tolerance`: of a signed timestamp, in both directions. `clock`: returns Unix seconds.

    The constructors raise `SecretError` for a secret that is missing, blank or not of the
    provider's form, and `ConfigurationError` for any other setting that can't work.
    """

    __slots__ = (
        "_clock",
        "_expected",
        "_secrets",
        "_url",
        "_verify_tokens",
        "endpoint",
        "keys",
        "max_body",
        "provider",
        "tolerance",
    )

    def __init__(self, provider: Provider, secrets: Secrets, **settings: Unpack[Settings]) -> None:
        unknown = settings.keys() - Settings.__annotations__.keys()
        if unknown:
            raise ConfigurationError(f"a verifier has no setting {', '.join(sorted(unknown))}")
        self.provider = provider
        self.endpoint = settings.get("endpoint", "")
        self.keys = settings.get("keys") or provider.keys
        self.max_body = settings.get("max_body", provider.max_body)
        self.tolerance = settings.get("tolerance", DEFAULT_TOLERANCE)
        self._secrets = tuple([provider.read_secret(secret) for secret in _several(secrets)])
        self._expected = [
            (name, where, _expected(name, value, where))
            for name, where, value in (
                ("type", provider.type, settings.get("types")),
                ("application", provider.application, settings.get("applications")),
                ("tenant", provider.tenant, settings.get("tenants")),
            )
        ]
        self._clock = settings.get("clock", time.time)
        self._url = ""
        self._verify_tokens: tuple[bytes, ...] = ()
        if not self._secrets:
            raise SecretError("secrets is empty: without a secret nothing can be verified")
        if self.max_body < 1:
            raise ConfigurationError("max_body must be at least 1 byte")
        if self.tolerance <= timedelta(0):
            raise ConfigurationError("tolerance must be above 0")

    @property
    def scope(self) -> str:
        """What stands before the ids of this verifier's messages to make their keys."""
        return scoped(self.source, self.endpoint)

    @classmethod
    def standard(
        cls,
        secrets: Secrets,
        *,
        names: HeaderNames = STANDARD_HEADER_NAMES,
        **settings: Unpack[Settings],
    ) -> Self:
        """Standard Webhooks 1.0.0, which is how Surehook signs by default.

        `secrets`: one or several of ``whsec_…``, ``whpk_…``. The key is ``webhook-id``, signed.
        `names` are those of the headers, where a sender has its own.
        """
        return cls(providers.standard(names), secrets, **settings)

    @classmethod
    def stripe(cls, secrets: Secrets, **settings: Unpack[Settings]) -> Self:
        """Stripe. `secrets`: the endpoint's ``whsec_…`` text. The key is the event's ``id``."""
        return cls(providers.STRIPE, secrets, **settings)

    @classmethod
    def github(cls, secrets: Secrets, **settings: Unpack[Settings]) -> Self:
        """GitHub. The key is ``X-GitHub-Delivery``, which GitHub does not sign."""
        return cls(providers.GITHUB, secrets, **settings)

    @classmethod
    def shopify(cls, secrets: Secrets, **settings: Unpack[Settings]) -> Self:
        """Shopify. `secrets`: the app's client secret. The key is ``X-Shopify-Webhook-Id``."""
        return cls(providers.SHOPIFY, secrets, **settings)

    @classmethod
    def slack(cls, secrets: Secrets, **settings: Unpack[Settings]) -> Self:
        """Slack. `secrets`: the app's signing secret. The key is ``event_id`` or ``trigger_id``.

        Slack's URL verification is answered without the handler.
        """
        return cls(providers.SLACK, secrets, **settings)

    @classmethod
    def meta(
        cls,
        secrets: Secrets,
        *,
        verify_token: str | Iterable[str] | None = None,
        source: str = "meta",
        **settings: Unpack[Settings],
    ) -> Self:
        """Meta: WhatsApp, Instagram, Messenger. `secrets`: the app secret.

        `verify_token` is what Meta's GET handshake has to show; without it the handshake is
        refused. `source` tells products apart, in the keys and in `receiver.windows`:
        ``whatsapp``, ``instagram`` or ``messenger``.
        """
        verifier = cls(replace(providers.META, source=source), secrets, **settings)
        if verify_token is not None:
            tokens = _several(verify_token)
            verifier._verify_tokens = tuple([providers.text_secret(token) for token in tokens])
        return verifier

    @classmethod
    def twilio(cls, secrets: Secrets, *, url: str = "", **settings: Unpack[Settings]) -> Self:
        """Twilio. `secrets`: the primary auth token.

        `url` is the public URL that Twilio calls, with which it signs: needed behind a proxy that
        changes scheme, host or path. The query is that of the request.
        """
        verifier = cls(providers.TWILIO, secrets, **settings)
        verifier._url = url
        return verifier

    @classmethod
    def adyen(cls, secrets: Secrets, **settings: Unpack[Settings]) -> Self:
        """Adyen's standard webhooks. `secrets`: the HMAC key in hex.

        Every item of a body is a message of its own. Adyen signs eight fields of it only.
        """
        return cls(providers.ADYEN, secrets, **settings)

    @classmethod
    def mercado_libre(cls, secrets: Secrets, **settings: Unpack[Settings]) -> Self:
        """Mercado Libre, and others that sign nothing.

        `secrets`: a segment of the callback URL's path, of at least 16 characters.
        `applications`, the application's id, and `types`, the topics, are both needed. Treat what
        arrives as a hint: fetch the resource from the provider before you act on it.
        """
        for name in ("applications", "types"):
            if not settings.get(name):
                raise ConfigurationError(f"{name} is needed: nothing else is known of the sender")
        return cls(providers.MERCADO_LIBRE, secrets, **settings)

    @property
    def source(self) -> str:
        """The provider's name."""
        return self.provider.source

    def verify(
        self,
        headers: RawHeaders,
        body: bytes | str,
        *,
        method: str = "POST",
        url: str = "",
        now: datetime | float | None = None,
    ) -> Message:
        """Verify one request, given as its headers and its raw body.

        `url` is needed for Twilio (unless it was configured) and Mercado Libre. `now` is an aware
        datetime or Unix seconds, in place of the clock.

        Raises `receiver.errors.VerificationError` for whatever is wrong with the request.
        """
        return self.verify_request(Request(headers, body, method=method, url=url), now=now)

    def verify_request(self, request: Request, *, now: datetime | float | None = None) -> Message:
        """Like `verify`, for a `Request`."""
        if len(request.body) > self.max_body:
            raise TooLargeError(self.max_body)
        if request.method not in self.provider.methods:
            raise RequestError("method", f"a delivery is a {' or '.join(self.provider.methods)}")
        if self._url:
            request = request.called_at(self._url)
        check = Check(self._secrets, self._seconds(now), self.tolerance)
        signed_at = self.provider.authenticate(request, check)
        asked = request.method == "GET"
        message = Message(
            source=self.source,
            endpoint=self.endpoint,
            body=request.query.encode() if asked else request.body,
            headers=request.headers,
            parts=(),
            type_at=self.provider.type,
            timestamp=signed_at,
            form=asked or request.is_form,
        )
        reply = self._challenge(message)
        parts = self.keys.parts(self.scope, message.headers, message.body, lambda: message.content)
        if reply is None:
            self._expect(message)
        return message.with_parts(parts, reply)

    def handshake(self, request: Request) -> bytes | None:
        """The answer to Meta's GET with ``hub.challenge``; None for any other request.

        Raises `SignatureError` when ``hub.verify_token`` is not the configured one.
        """
        asks = request.method == "GET" and "hub.challenge=" in request.query
        if not asks or not self.provider.handshake:
            return None
        try:
            asked = dict(parse_qsl(request.query, keep_blank_values=True, errors="strict"))
        except ValueError:
            raise RequestError("url_malformed", "the query can't be read") from None
        token = asked.get("hub.verify_token", "")
        known = [same_text(token, expected) for expected in self._verify_tokens]
        if asked.get("hub.mode") != "subscribe" or not any(known):
            raise SignatureError("token_mismatch", "hub.verify_token is not the configured one")
        return asked["hub.challenge"].encode()

    def _challenge(self, message: Message) -> bytes | None:
        wanted = self.provider.challenge
        if not wanted or message.form or message.type != wanted:
            return None
        value = next(find(message.content, "challenge"), None)
        if not isinstance(value, str):
            raise RequestError("challenge_missing", f"{wanted} without a challenge")
        return value.encode("utf-8", "replace")

    def _expect(self, message: Message) -> None:
        for name, where, expected in self._expected:
            if expected is None:
                continue
            values = [str(value) for value in message.values(where)]
            if not values or not expected.issuperset(values):
                raise RequestError(f"{name}_unexpected", f"this {name} is not expected here")

    def _seconds(self, now: datetime | float | None) -> float:
        if now is None:
            return self._clock()
        if not isinstance(now, datetime):
            return now
        if now.tzinfo is None:
            raise ConfigurationError("now must be an aware datetime: give it a time zone")
        return now.timestamp()


def _several(value: object) -> list[object]:
    """One or several as a list."""
    if isinstance(value, (str, bytes, bytearray)) or not isinstance(value, Iterable):
        return [value]
    return list(value)


def _expected(name: str, value: Expected, where: str) -> frozenset[str] | None:
    if value is None:
        return None
    if not where:
        raise ConfigurationError(f"{name}s: this provider's messages do not say their {name}")
    return frozenset([str(item) for item in _several(value)])
