"""Signatures: the code that signs is the code that customers verify with.

Signed is ``{id}.{timestamp}.{body}`` (Standard Webhooks 1.0.0): ``v1`` is HMAC-SHA256, ``v1a`` is
Ed25519, both in base64. Signatures over the body alone are in :mod:`wire.body_signature`.

Whatever arrives, :func:`verify` returns or raises :class:`~wire.errors.VerificationError`; what
can't be the sender's doing (no secret, a naive ``now``) raises another :class:`WireError`.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias, cast

from wire.errors import IdError, SecretError, VerificationError, WireError
from wire.secrets import Secret, parse_secret

SecretOrText: TypeAlias = str | Secret
OneOrMoreSecrets: TypeAlias = SecretOrText | Iterable[SecretOrText]
HeaderText: TypeAlias = str | bytes
Headers: TypeAlias = (
    Mapping[str, str] | Mapping[bytes, bytes] | Iterable[tuple[HeaderText, HeaderText]]
)
Body: TypeAlias = bytes | bytearray | memoryview | str

DEFAULT_TOLERANCE: Final = timedelta(minutes=5)
"""How far the timestamp may be from now, both ways (Standard Webhooks libraries: 5 minutes)."""
MAX_SIGNATURES: Final = 32
"""Signatures examined in one header: bounds the work that a hostile header can cause."""
_MAX_SIGNATURE_HEADER: Final = 8192
_MAX_HEADERS: Final = 1000
# No dot: the dots of the signed text must have one reading. No space: ids are tokens.
_ID: Final = re.compile(r"[\x21-\x2d\x2f-\x7e]{1,255}")
# ASCII digits only (int() takes far more), in their one spelling, and no room for milliseconds.
_TIMESTAMP: Final = re.compile(r"0|[1-9][0-9]{0,11}")


class Reason(StrEnum):
    """Why a message does not verify: the ``reason`` of a VerificationError. Stable codes."""

    BODY_NOT_BYTES = "body_not_bytes"
    HEADERS_UNREADABLE = "headers_unreadable"
    HEADER_MISSING = "header_missing"
    HEADER_REPEATED = "header_repeated"
    ID_MALFORMED = "id_malformed"
    TIMESTAMP_MALFORMED = "timestamp_malformed"
    TIMESTAMP_TOO_OLD = "timestamp_too_old"
    TIMESTAMP_TOO_NEW = "timestamp_too_new"
    SIGNATURE_MALFORMED = "signature_malformed"
    SIGNATURE_MISMATCH = "signature_mismatch"


class HeaderNames(NamedTuple):
    """Where a signed message carries its id, timestamp and signatures."""

    id: str = "webhook-id"
    timestamp: str = "webhook-timestamp"
    signature: str = "webhook-signature"


STANDARD_HEADER_NAMES: Final = HeaderNames()


@dataclass(frozen=True, slots=True)
class Verified:
    """A message that verified. ``id`` is the deduplication key, ``timestamp`` Unix seconds."""

    id: str
    timestamp: int


def sign(secret: SecretOrText, id: str, timestamp: int, body: Body) -> str:  # noqa: A002
    """Return the signature of one message, ``v1,…`` or ``v1a,…``.

    Parameters:
        secret: Text or, faster, the result of ``parse_secret``.
        id: The delivery id: printable ASCII without space and dot, at most 255 characters.
        timestamp: Unix seconds of this attempt.
        body: The exact bytes to be sent; ``str`` stands for its UTF-8.

    Raises:
        SecretError: The secret is not acceptable or can't sign.
        IdError: The id is not of the said form.
        WireError: The timestamp or the body is unusable.
    """
    return parse_secret(secret).sign(signed_content(id, timestamp, body))


def sign_all(secrets: OneOrMoreSecrets, id: str, timestamp: int, body: Body) -> str:  # noqa: A002
    """Return one signature for each secret, separated by spaces: the header's value.

    Raises:
        SecretError: No secret, or one that is not acceptable or can't sign.
        IdError: See :func:`sign`.
        WireError: See :func:`sign`.
    """
    content = signed_content(id, timestamp, body)
    return " ".join([secret.sign(content) for secret in parse_secrets(secrets)])


def signed_content(id: str, timestamp: int, body: Body) -> bytes:  # noqa: A002
    """Return the bytes that are signed: ``{id}.{timestamp}.{body}``.

    Raises:
        IdError: See :func:`sign`.
        WireError: See :func:`sign`.
    """
    _check_signed_parts(id, timestamp)
    return b"%b.%d.%b" % (id.encode("ascii"), timestamp, body_bytes(body))


def _check_signed_parts(id: object, timestamp: object) -> None:  # noqa: A002
    if not isinstance(id, str) or _ID.fullmatch(id) is None:
        raise IdError("a signed id is 1 to 255 printable ASCII characters, no space and no dot")
    if isinstance(timestamp, bool) or not isinstance(timestamp, int):
        raise WireError(f"timestamp is whole Unix seconds, not {type(timestamp).__name__}")
    if not 0 <= timestamp < 10**12:
        raise WireError("timestamp is Unix seconds: not negative, at most 12 digits")


def parse_secrets(secrets: OneOrMoreSecrets) -> tuple[Secret, ...]:
    """Return one or several secrets as parsed ones, at least one.

    Raises:
        SecretError: There is none, or one is not acceptable.
    """
    one_or_more: object = secrets
    if one_or_more is None or isinstance(one_or_more, str | bytes | bytearray | Secret):
        return (parse_secret(one_or_more),)
    if not isinstance(secrets, Iterable):
        raise SecretError(f"secrets is one secret or several, not {type(secrets).__name__}")
    parsed = tuple([parse_secret(secret) for secret in secrets])
    if not parsed:
        raise SecretError("secrets is empty: without a secret nothing can be signed or verified")
    return parsed


def verify(
    secrets: OneOrMoreSecrets,
    headers: Headers,
    body: Body,
    *,
    now: datetime | float | None = None,
    tolerance: timedelta = DEFAULT_TOLERANCE,
    header_names: HeaderNames = STANDARD_HEADER_NAMES,
) -> Verified:
    """Verify a received message, whatever its content type; an empty body is a body.

    One matching signature is enough; versions not known here are ignored.

    Parameters:
        secrets: One secret or, during a rotation, several; text or parsed.
        headers: Any mapping, or pairs, of str or bytes; any case. A repeated one is an error.
        body: The raw bytes received, before any parsing; ``str`` stands for its UTF-8.
        now: Aware datetime or Unix seconds instead of the clock.
        tolerance: How old or how far ahead the timestamp may be, inclusive.
        header_names: Other names for the three headers.

    Raises:
        VerificationError: It does not verify; ``reason`` is a :class:`Reason`.
        SecretError: A secret is missing or not acceptable.
        WireError: ``now`` or ``tolerance`` is unusable.
    """
    parsed = parse_secrets(secrets)
    current = _unix_seconds(now)
    seconds = _tolerance_seconds(tolerance)
    raw = body_bytes(body)
    id_text, timestamp_text, signature_text = _pick(headers, header_names)
    if _ID.fullmatch(id_text) is None:
        raise VerificationError(Reason.ID_MALFORMED, f"{header_names.id} is not an id")
    if _TIMESTAMP.fullmatch(timestamp_text) is None:
        raise VerificationError(
            Reason.TIMESTAMP_MALFORMED, f"{header_names.timestamp} is not whole Unix seconds"
        )
    timestamp = int(timestamp_text)
    if timestamp < current - seconds:
        raise VerificationError(Reason.TIMESTAMP_TOO_OLD, "the message's timestamp is too old")
    if timestamp > current + seconds:
        raise VerificationError(Reason.TIMESTAMP_TOO_NEW, "the message's timestamp is too new")
    _match(parsed, signed_content(id_text, timestamp, raw), signature_text, header_names.signature)
    return Verified(id_text, timestamp)


def _match(secrets: Sequence[Secret], content: bytes, header: str, name: str) -> None:
    candidates = [token for token in header.split(" ") if token]
    if len(header) > _MAX_SIGNATURE_HEADER or len(candidates) > MAX_SIGNATURES:
        raise VerificationError(
            Reason.SIGNATURE_MALFORMED, f"{name} holds more than {MAX_SIGNATURES} signatures"
        )
    if not candidates:
        raise VerificationError(Reason.SIGNATURE_MALFORMED, f"{name} is empty")
    for candidate in candidates:
        version, _, text = candidate.partition(",")
        if not text.isascii():
            continue
        signature = text.encode("ascii")
        for secret in secrets:
            if secret.version == version and secret.matches(content, signature):
                return
    raise VerificationError(Reason.SIGNATURE_MISMATCH, f"no signature in {name} matches")


def body_bytes(body: object) -> bytes:
    """Return the bytes of a body: bytes as they are, ``str`` as its UTF-8.

    Raises:
        VerificationError: ``body_not_bytes``: it is anything else, such as a parsed dict.
    """
    if type(body) is bytes:
        return body
    try:
        if isinstance(body, str):
            return str.encode(body, "utf-8")
        if isinstance(body, bytes | bytearray | memoryview):
            return bytes(memoryview(body))
    except Exception:  # noqa: BLE001  (a foreign object can raise anything)
        # A lone surrogate, a memoryview already released, an object that only claims to be bytes.
        raise VerificationError(
            Reason.BODY_NOT_BYTES, "the body can't be turned into bytes; pass the raw bytes"
        ) from None
    raise VerificationError(
        Reason.BODY_NOT_BYTES,
        f"the body is the raw bytes as received, not {type(body).__name__}: "
        "verify before parsing, since parsing and writing again changes bytes",
    )


def _pick(headers: object, names: HeaderNames) -> tuple[str, str, str]:
    wanted = {name.lower(): name for name in names}
    try:
        found = _find(headers, wanted)
    except VerificationError:
        raise
    except Exception:  # noqa: BLE001  (whatever a foreign object does, hostile input has one error)
        raise VerificationError(
            Reason.HEADERS_UNREADABLE, "headers are neither a mapping nor pairs of str or bytes"
        ) from None
    for lower, name in wanted.items():
        if lower not in found:
            raise VerificationError(Reason.HEADER_MISSING, f"the header {name} is missing")
    return found[names.id.lower()], found[names.timestamp.lower()], found[names.signature.lower()]


def _find(headers: object, wanted: Mapping[str, str]) -> dict[str, str]:
    items = getattr(headers, "items", None)
    pairs = cast("Iterable[tuple[object, object]]", items() if callable(items) else headers)
    found: dict[str, str] = {}
    for count, (name, value) in enumerate(pairs):
        if count >= _MAX_HEADERS:
            raise VerificationError(
                Reason.HEADERS_UNREADABLE, f"there are more than {_MAX_HEADERS} headers"
            )
        lower = header_text(name)
        # Only ASCII letters have a case here: the Kelvin sign must not turn into a "k".
        if not lower.isascii() or (lower := lower.lower()) not in wanted:
            continue
        if lower in found:
            raise VerificationError(
                Reason.HEADER_REPEATED, f"the header {wanted[lower]} occurs more than once"
            )
        found[lower] = header_text(value)
    return found


def header_text(value: object) -> str:
    """Return a header's name or value as text; bytes are read as Latin-1, which never fails.

    Raises:
        TypeError: Neither str nor bytes.
    """
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes):
        return bytes.decode(value, "latin-1")
    raise TypeError("a header is str or bytes")


def _unix_seconds(now: object) -> float:
    if now is None:
        return time.time()
    if isinstance(now, datetime):
        if now.utcoffset() is None:
            raise WireError("now is an aware datetime: it needs a time zone")
        return now.timestamp()
    if isinstance(now, bool) or not isinstance(now, int | float) or not math.isfinite(now):
        raise WireError("now is an aware datetime or a finite number of Unix seconds")
    return now


def _tolerance_seconds(tolerance: object) -> float:
    if not isinstance(tolerance, timedelta) or tolerance < timedelta(0):
        raise WireError("tolerance is a timedelta that is not negative")
    return tolerance.total_seconds()
