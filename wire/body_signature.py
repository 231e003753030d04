"""Signatures over the body alone: ``sha256=`` + hex of HMAC-SHA256, as GitHub signs.

For receivers that already verify such signatures. They cover no id and no timestamp, so they don't
protect against replay; prefer :mod:`wire.signature` wherever there is a choice.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable
from typing import Final

from wire.errors import SecretError, VerificationError
from wire.signature import Body, HeaderText, Reason, body_bytes, header_text

_MAX_HMAC_KEY_TEXT: Final = 1024
_HEX_SIGNATURE: Final = re.compile(r"sha256=[0-9a-fA-F]{64}")


def _hmac_key(secret: object) -> bytes:
    if isinstance(secret, str):
        try:
            key = str.encode(secret, "utf-8")
        except UnicodeEncodeError:
            raise SecretError("the secret is not valid Unicode text") from None
    elif isinstance(secret, bytes):
        key = bytes(secret)
    else:
        raise SecretError(f"a secret is str or bytes, not {type(secret).__name__}")
    if not key.strip():
        raise SecretError("the secret is empty or blank: anyone could sign")
    if len(key) > _MAX_HMAC_KEY_TEXT:
        raise SecretError(f"the secret has more than {_MAX_HMAC_KEY_TEXT} bytes")
    return key


def hmac_sha256_hex(secret: str | bytes, body: Body) -> str:
    """Return ``sha256=`` + hex of HMAC-SHA256 over the body alone, as GitHub signs.

    The key is the secret's text itself, prefix and all, as UTF-8: a receiver of this kind knows
    nothing of prefixes and base64, and uses the text it was shown.

    Raises:
        SecretError: The secret is empty, blank, or neither str nor bytes.
        WireError: The body is unusable.
    """
    return "sha256=" + hmac.digest(_hmac_key(secret), body_bytes(body), "sha256").hex()


def verify_hmac_sha256_hex(
    secrets: str | bytes | Iterable[str | bytes], signature: HeaderText | None, body: Body
) -> None:
    """Verify a ``sha256=…`` signature against one or several secrets (their text is the key).

    Parameters:
        signature: The header's value; None stands for a missing header.

    Raises:
        VerificationError: It does not verify.
        SecretError: A secret is missing, empty or blank.
    """
    one = isinstance(secrets, str | bytes) or not isinstance(secrets, Iterable)
    several: Iterable[object] = (secrets,) if one else secrets
    keys = [_hmac_key(secret) for secret in several]
    if not keys:
        raise SecretError("secrets is empty: without a secret nothing can be verified")
    raw = body_bytes(body)
    if signature is None:
        raise VerificationError(Reason.HEADER_MISSING, "the signature header is missing")
    try:
        text = header_text(signature)
    except TypeError:
        raise VerificationError(Reason.HEADERS_UNREADABLE, "a signature is str or bytes") from None
    if _HEX_SIGNATURE.fullmatch(text) is None:
        raise VerificationError(
            Reason.SIGNATURE_MALFORMED, "the signature is not sha256= and 64 hex digits"
        )
    given = bytes.fromhex(text[len("sha256=") :])
    for key in keys:
        if hmac.compare_digest(hmac.digest(key, raw, "sha256"), given):
            return
    raise VerificationError(Reason.SIGNATURE_MISMATCH, "the signature does not match")
