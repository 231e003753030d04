"""Header profiles: how ids, attempt number and signatures are named on the wire, as data.

A name may start with ``{prefix}``, which a platform sets once (``X-Webhook-``, ``X-Acme-``).
Whatever the profile, the id that a receiver deduplicates by is the delivery id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

from wire.body_signature import hmac_sha256_hex
from wire.errors import HeaderError, ProfileError
from wire.headers import FRAMING_NAMES, check_header_name
from wire.secrets import HmacSecret, Secret
from wire.signature import signed_content

DEFAULT_PREFIX: Final = "X-Webhook-"
MAX_PROFILES: Final = 4
_PREFIX_MARK: Final = "{prefix}"
_MAX_PROFILE_NAME: Final = 64
_FORBIDDEN: Final = FRAMING_NAMES | {"authorization", "cookie"}


class SignatureScheme(StrEnum):
    """What is signed and how it is spelled."""

    STANDARD = "standard"
    """``v1,…`` / ``v1a,…`` over ``{id}.{timestamp}.{body}``, one for each active secret."""
    SHA256_HEX = "sha256-hex"
    """``sha256=<hex>`` over the body. The key is the text of the first ``whsec_`` secret, exactly
    as shown to the customer: receivers of this kind use the text they were given. The header has
    room for one signature, so there is no overlap: during a rotation the first secret counts."""


@dataclass(frozen=True, slots=True)
class HeaderProfile:
    """The header names of one profile; None leaves a header out.

    ``id`` is the receiver's deduplication key and, like ``delivery_id``, carries the delivery id.

    Raises:
        ProfileError: Incomplete or contradictory; the message names the field.
    """

    name: str
    scheme: SignatureScheme
    signature: str
    id: str
    timestamp: str | None = None
    event_id: str | None = None
    event_type: str | None = None
    delivery_id: str | None = None
    attempt: str | None = None

    def __post_init__(self) -> None:
        _check_profile_name(self.name)
        try:
            object.__setattr__(self, "scheme", SignatureScheme(self.scheme))
        except ValueError:
            allowed = ", ".join(SignatureScheme)
            raise ProfileError(f"profile {self.name}: scheme is one of {allowed}") from None
        if self.scheme is SignatureScheme.STANDARD and self.timestamp is None:
            raise ProfileError(f"profile {self.name}: the standard scheme needs timestamp")
        check_profiles([self])

    def names(self, prefix: str = DEFAULT_PREFIX) -> dict[str, str]:
        """Return the header names in use, by field (``{"id": "webhook-id", …}``)."""
        given = {field: getattr(self, field) for field in _NAME_FIELDS}
        return {k: v.replace(_PREFIX_MARK, prefix) for k, v in given.items() if v is not None}

    def to_dict(self) -> dict[str, str]:
        """Return a JSON object that :meth:`from_dict` reads."""
        return {key: str(value) for key, value in asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, given: object) -> HeaderProfile:
        """Return the profile that a platform defined.

        Raises:
            ProfileError: Not an object, unknown or missing fields, or unusable names.
        """
        if not isinstance(given, Mapping):
            raise ProfileError("a header profile is an object of field and header name")
        known = {field.name for field in fields(cls)}
        for key, value in given.items():
            if key not in known:
                raise ProfileError(f"a header profile has no field {str(key)[:64]!a}")
            if value is not None and not isinstance(value, str):
                raise ProfileError(f"header profile, {key}: expected text")
        for key in ("name", "scheme", "signature", "id"):
            if given.get(key) is None:
                raise ProfileError(f"header profile: the field {key} is missing")
        return cls(**given)


_NAME_FIELDS: Final = (
    "id", "timestamp", "signature", "event_id", "event_type", "delivery_id", "attempt",
)  # fmt: skip


class _Layout(NamedTuple):
    """Profiles made ready: (header name, where its value comes from)."""

    values: tuple[tuple[str, str], ...]
    standard: tuple[str, ...]
    sha256_hex: tuple[str, ...]


def check_profiles(profiles: Sequence[HeaderProfile], *, prefix: str = DEFAULT_PREFIX) -> None:
    """Check that the profiles can be sent together, under this prefix.

    Raises:
        ProfileError: None, more than 4, one twice, a name that is not a header name or that is
            reserved, or one name that would need two values.
    """
    _layout(tuple(profiles), prefix)


@lru_cache(maxsize=256)
def _layout(profiles: tuple[HeaderProfile, ...], prefix: str) -> _Layout:
    if not 1 <= len(profiles) <= MAX_PROFILES:
        raise ProfileError(f"profiles: give 1 to {MAX_PROFILES} header profiles")
    if len({profile.name for profile in profiles}) != len(profiles):
        raise ProfileError("profiles: one profile is named twice")
    sources: dict[str, str] = {}
    spelling: dict[str, str] = {}
    for profile in profiles:
        for field, name in profile.names(prefix).items():
            source = _source(profile, field)
            lower = _check_name(profile, field, name)
            if sources.setdefault(lower, source) != source:
                raise ProfileError(
                    f"profile {profile.name}, {field}: the header {name} already carries "
                    f"{sources[lower]}"
                )
            spelling.setdefault(lower, name)
    pairs = [(spelling[lower], source) for lower, source in sources.items()]
    return _Layout(
        values=tuple((name, source) for name, source in pairs if source not in _SIGNATURES),
        standard=tuple(name for name, source in pairs if source == _STANDARD_SIGNATURE),
        sha256_hex=tuple(name for name, source in pairs if source == _HEX_SIGNATURE),
    )


_STANDARD_SIGNATURE: Final = "the standard signature"
_HEX_SIGNATURE: Final = "the sha256-hex signature"
_SIGNATURES: Final = frozenset({_STANDARD_SIGNATURE, _HEX_SIGNATURE})


def _source(profile: HeaderProfile, field: str) -> str:
    if field == "signature":
        standard = profile.scheme is SignatureScheme.STANDARD
        return _STANDARD_SIGNATURE if standard else _HEX_SIGNATURE
    return "delivery_id" if field == "id" else field


def _check_name(profile: HeaderProfile, field: str, name: str) -> str:
    try:
        lower = check_header_name(name).lower()
    except HeaderError as error:
        raise ProfileError(f"profile {profile.name}, {field}: {error}") from None
    if lower in _FORBIDDEN:
        raise ProfileError(f"profile {profile.name}, {field}: the header {name} is reserved")
    return lower


def _check_profile_name(name: object) -> None:
    ok = isinstance(name, str) and name.isascii() and 1 <= len(name) <= _MAX_PROFILE_NAME
    if not ok or not str(name).replace("-", "").replace("_", "").isalnum():
        raise ProfileError("profile name: 1 to 64 ASCII letters, digits, '-' and '_'")


def build_headers(
    profiles: Sequence[HeaderProfile],
    *,
    secrets: Iterable[Secret],
    delivery_id: str,
    event_id: str,
    event_type: str,
    attempt: int,
    timestamp: int,
    body: bytes,
    user_agent: str,
    content_type: str = "application/json",
    prefix: str = DEFAULT_PREFIX,
) -> dict[str, str]:
    """Return every header of one attempt, signed; several profiles are merged.

    Parameters:
        secrets: Parsed secrets, newest first; each signs (``sha256-hex``: the first ``whsec_``).
        attempt: Number of the attempt, from 1.
        timestamp: Unix seconds of this attempt.
        body: The stored bytes that will be sent.

    Raises:
        ProfileError: The profiles clash, or there is no secret of the kind they need.
        SecretError: A secret is a public key.
        IdError: The delivery id can't be signed.
    """
    layout = _layout(tuple(profiles), prefix)
    several = tuple(secrets)
    if not several:
        raise ProfileError("secrets: an attempt is signed, so at least one secret is needed")
    values = {
        "delivery_id": delivery_id,
        "timestamp": str(timestamp),
        "event_id": event_id,
        "event_type": event_type,
        "attempt": str(attempt),
    }
    headers = {
        "content-type": content_type,
        "user-agent": user_agent,
        "accept-encoding": "identity",
    }
    for name, source in layout.values:
        headers[name] = values[source]
    if layout.standard:
        content = signed_content(delivery_id, timestamp, body)
        signatures = " ".join([secret.sign(content) for secret in several])
        headers.update(dict.fromkeys(layout.standard, signatures))
    if layout.sha256_hex:
        headers.update(dict.fromkeys(layout.sha256_hex, _sha256_hex(several, body)))
    return headers


def _sha256_hex(secrets: Iterable[Secret], body: bytes) -> str:
    for secret in secrets:
        if isinstance(secret, HmacSecret):
            return hmac_sha256_hex(secret.reveal(), body)
    raise ProfileError("secrets: the sha256-hex scheme needs a whsec_ secret")


STANDARD: Final = HeaderProfile(
    name="standard",
    scheme=SignatureScheme.STANDARD,
    signature="webhook-signature",
    id="webhook-id",
    timestamp="webhook-timestamp",
    event_id="{prefix}Event-Id",
    event_type="{prefix}Event-Type",
    delivery_id="{prefix}Delivery-Id",
    attempt="{prefix}Attempt",
)
"""Standard Webhooks 1.0.0, the default."""

IDEMPOTENCY_KEY: Final = HeaderProfile(
    name="idempotency-key",
    scheme=SignatureScheme.SHA256_HEX,
    signature="X-Signature-256",
    id="X-Idempotency-Key",
    event_id="X-Event-ID",
    event_type="X-Event-Type",
    attempt="X-Delivery-Attempt",
)
"""For receivers that deduplicate by ``X-Idempotency-Key``."""

GITHUB: Final = HeaderProfile(
    name="github",
    scheme=SignatureScheme.SHA256_HEX,
    signature="X-Hub-Signature-256",
    id="X-GitHub-Delivery",
    event_type="X-GitHub-Event",
    attempt="{prefix}Attempt",
)
"""For receivers written for GitHub's webhooks."""

PROFILES: Final[Mapping[str, HeaderProfile]] = MappingProxyType(
    {profile.name: profile for profile in (STANDARD, IDEMPOTENCY_KEY, GITHUB)}
)
"""The built-in profiles by name."""
