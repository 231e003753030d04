"""The providers that the kit knows, as data. Nothing here is code of their own.

Where a value is found is written ``header:<name>`` or ``body:<path>`` (paths as in
`receiver.keys`), with ``|`` between alternatives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from receiver import schemes
from receiver.keys import META_MESSAGES, KeyRule
from wire.errors import SecretError
from wire.secrets import Secret, parse_secret
from wire.signature import STANDARD_HEADER_NAMES, HeaderNames

__all__ = ["Provider", "body_hmac", "standard"]

MIB: Final = 1024 * 1024
MIN_PATH_SECRET: Final = 16
MIN_ADYEN_KEY: Final = 16


def standard_secret(secret: object) -> Secret:
    """A ``whsec_…`` or ``whpk_…`` secret. Raises `SecretError`."""
    if isinstance(secret, (str, Secret)):
        return parse_secret(secret)
    raise SecretError(f"the secret must be str, not {type(secret).__name__}")


def text_secret(secret: object) -> bytes:
    """The text itself is the key. Raises `SecretError` for what anyone could guess or mistype."""
    if isinstance(secret, bytes):
        key = secret
    elif isinstance(secret, str):
        try:
            key = secret.encode()
        except UnicodeEncodeError:
            raise SecretError("the secret has characters that have no UTF-8 form") from None
    else:
        raise SecretError(f"the secret must be str or bytes, not {type(secret).__name__}")
    if not key.strip():
        raise SecretError("the secret is empty or white space: anyone could sign with it")
    if key.strip() != key:
        raise SecretError("the secret begins or ends with white space: remove it")
    return key


def hex_secret(secret: object) -> bytes:
    """An HMAC key in hex, as Adyen's Customer Area gives it. Raises `SecretError`."""
    text = text_secret(secret)
    try:
        key = bytes.fromhex(text.decode("ascii"))
    except ValueError:
        raise SecretError("the HMAC key must be hex digits, an even number of them") from None
    if len(key) < MIN_ADYEN_KEY or len(key) * 2 != len(text):
        raise SecretError(f"the HMAC key must be hex for at least {MIN_ADYEN_KEY} bytes, unspaced")
    return key


def path_secret(secret: object) -> bytes:
    """A segment of a URL's path that can't be guessed. Raises `SecretError`."""
    key = text_secret(secret)
    if len(key) < MIN_PATH_SECRET or b"/" in key:
        raise SecretError(
            f"the secret path must be one segment of at least {MIN_PATH_SECRET} characters"
        )
    return key


@dataclass(frozen=True, slots=True)
class Provider:
    """One provider: how it signs, what identifies its messages, where its names are.

    ``read_secret`` turns a secret as the provider shows it into a key. ``max_body`` is the
    default limit in bytes. ``accepted`` is the body of a 2xx answer. ``challenge`` is the type
    whose messages ask for their field of that name to be sent back, and ``handshake`` tells
    whether the provider asks for ``hub.challenge`` with a GET.
    """

    source: str
    authenticate: schemes.Authenticate
    keys: KeyRule
    read_secret: Callable[[object], bytes | Secret] = text_secret
    type: str = ""
    application: str = ""
    tenant: str = ""
    max_body: int = MIB
    methods: tuple[str, ...] = ("POST",)
    accepted: bytes = b""
    challenge: str = ""
    handshake: bool = False


def standard(names: HeaderNames = STANDARD_HEADER_NAMES) -> Provider:
    """Standard Webhooks 1.0.0; some senders have other `names` for its headers (``svix-id``)."""
    return Provider(
        source="standard",
        authenticate=schemes.standard(names),
        keys=KeyRule(headers=(names.id,)),
        read_secret=standard_secret,
        type="body:type",
    )


def body_hmac(
    source: str,
    *,
    header: str,
    prefix: str = "sha256=",
    base64: bool = False,
    key_header: str = "x-idempotency-key",
    type_at: str = "",
) -> Provider:
    """A sender that signs the body alone, with HMAC-SHA256 in `header` after `prefix`.

    In hex, or else in `base64`. `key_header` names the delivery; `type_at` says where the event
    type is. Surehook's own profile ``idempotency-key`` is
    ``body_hmac("surehook", header="x-signature-256", type_at="header:x-event-type")``.
    """
    encode = schemes.base64_digest if base64 else schemes.hex_digest
    return Provider(
        source=source,
        authenticate=schemes.over_body(header, prefix=prefix, encode=encode),
        keys=KeyRule(headers=(key_header,)),
        type=type_at,
    )


STRIPE: Final = Provider(
    source="stripe",
    authenticate=schemes.stripe,
    keys=KeyRule(paths=("id",)),
    type="body:type",
    # Events of connected accounts name the account: https://docs.stripe.com/connect/webhooks
    tenant="body:account",
)

GITHUB: Final = Provider(
    source="github",
    authenticate=schemes.over_body(
        "x-hub-signature-256", prefix="sha256=", encode=schemes.hex_digest
    ),
    keys=KeyRule(headers=("x-github-delivery",)),
    type="header:x-github-event",
    application="header:x-github-hook-installation-target-id",
    tenant="body:installation.id",
    # https://docs.github.com/en/webhooks/webhook-events-and-payloads: capped at 25 MB
    max_body=25 * MIB,
)

SHOPIFY: Final = Provider(
    source="shopify",
    authenticate=schemes.over_body("x-shopify-hmac-sha256", encode=schemes.base64_digest),
    keys=KeyRule(headers=("x-shopify-webhook-id",)),
    type="header:x-shopify-topic",
    tenant="header:x-shopify-shop-domain",
    max_body=5 * MIB,
)

SLACK: Final = Provider(
    source="slack",
    authenticate=schemes.slack,
    # The Events API names the event; slash commands and interactions have a trigger, once each.
    keys=KeyRule(paths=("event_id|trigger_id",), body_hash=True),
    type="body:event.type|body:type|body:command",
    application="body:api_app_id",
    tenant="body:team_id",
    challenge="url_verification",
)

META: Final = Provider(
    source="meta",
    authenticate=schemes.over_body(
        "x-hub-signature-256", prefix="sha256=", encode=schemes.hex_digest
    ),
    keys=META_MESSAGES,
    # whatsapp_business_account, instagram or page
    type="body:object",
    tenant="body:entry[].id",
    handshake=True,
    # https://developers.facebook.com/docs/whatsapp/cloud-api/guides/set-up-webhooks: up to 3 MB
    max_body=3 * MIB,
)

TWILIO: Final = Provider(
    source="twilio",
    authenticate=schemes.twilio,
    keys=KeyRule(headers=("i-twilio-idempotency-token",), body_hash=True),
    application="body:ApplicationSid",
    tenant="body:AccountSid",
    methods=("POST", "GET"),
)

_ITEM: Final = "NotificationRequestItem"

ADYEN: Final = Provider(
    source="adyen",
    authenticate=schemes.adyen,
    # Only signed fields. An item sent again may differ in its eventDate and in unsigned fields.
    # Source: https://docs.adyen.com/development-resources/webhooks/handle-webhook-events
    keys=KeyRule(
        messages=(f"notificationItems[].{_ITEM}.pspReference+{_ITEM}.eventCode+{_ITEM}.success",),
        others=("notificationItems[]",),
        fingerprint=(
            f"{_ITEM}.merchantAccountCode",
            f"{_ITEM}.originalReference",
            f"{_ITEM}.merchantReference",
            f"{_ITEM}.amount.value",
            f"{_ITEM}.amount.currency",
        ),
    ),
    read_secret=hex_secret,
    type=f"body:notificationItems[].{_ITEM}.eventCode",
    tenant=f"body:notificationItems[].{_ITEM}.merchantAccountCode",
    # https://docs.adyen.com/development-resources/webhooks/handle-webhook-events: older set-ups
    # take nothing else for an acknowledgement
    accepted=b"[accepted]",
)

MERCADO_LIBRE: Final = Provider(
    source="mercado_libre",
    authenticate=schemes.secret_path,
    keys=KeyRule(
        paths=("_id",),
        # attempts and sent are different in each attempt
        fingerprint=("topic", "resource", "user_id", "application_id"),
    ),
    read_secret=path_secret,
    type="body:topic",
    application="body:application_id",
    tenant="body:user_id",
)
