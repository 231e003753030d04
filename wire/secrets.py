"""Secrets and keys: one rule for what is accepted, the same for whoever signs and verifies.

======== ================================================== ======================
prefix   then strict, padded, standard base64 of             signs / verifies
======== ================================================== ======================
whsec_   24 to 64 random bytes                               HMAC-SHA256, both
whsk_    64 bytes: Ed25519 seed ‖ public key                 Ed25519, both
whpk_    32 bytes: Ed25519 public key                        Ed25519, verifies only
======== ================================================== ======================

Source: Standard Webhooks 1.0.0. Never lenient: a base64 decoder that skips what it doesn't know
turns a mistyped secret into a short, guessable key. No object here shows its key in ``repr``.
"""

from __future__ import annotations

import hmac
import os
import re
from abc import ABC, abstractmethod
from binascii import a2b_base64, b2a_base64
from typing import Final, Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from wire.errors import SecretError

HMAC_PREFIX: Final = "whsec_"
SIGNING_PREFIX: Final = "whsk_"
VERIFYING_PREFIX: Final = "whpk_"
MIN_HMAC_BYTES: Final = 24
MAX_HMAC_BYTES: Final = 64
_SEED_BYTES: Final = 32
_SIGNATURE_BYTES: Final = 64
_MAX_TEXT: Final = 128
_STANDARD_ALPHABET: Final = re.compile(r"[A-Za-z0-9+/]*={0,2}")
_URL_SAFE_ALPHABET: Final = re.compile(r"[A-Za-z0-9_\-+/=]*")
# Points of small order (RFC 7748 §7, RFC 8032 §8.9 note): under such a "public key" anyone can make
# a signature that verifies. The high bit is the sign of x and is left out of the comparison.
_SMALL_ORDER: Final = frozenset(
    bytes.fromhex(text)
    for text in (
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0100000000000000000000000000000000000000000000000000000000000000",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    )
)


class Secret(ABC):
    """A parsed secret. Made by :func:`parse_secret`; keep it and reuse it on a hot path."""

    __slots__ = ("_text",)
    version: str
    """The signature's version: ``v1`` or ``v1a``."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return f"<{type(self).__name__} ***>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash(self._text)

    def reveal(self) -> str:
        """Return the secret's text, as :func:`parse_secret` reads it. Never log it."""
        return self._text

    @abstractmethod
    def sign(self, signed_content: bytes) -> str:
        """Return the signature of ``{id}.{timestamp}.{body}``, such as ``v1,K5oZ…``.

        Raises:
            SecretError: A public key can't sign.
        """

    @abstractmethod
    def matches(self, signed_content: bytes, signature: bytes) -> bool:
        """Whether ``signature``, the ASCII text after the comma, is right. Never raises."""


class HmacSecret(Secret):
    """A ``whsec_`` secret, shared by both sides: HMAC-SHA256."""

    __slots__ = ("_key",)
    version = "v1"

    def __init__(self, text: str, key: bytes) -> None:
        super().__init__(text)
        self._key = key

    def _digest(self, signed_content: bytes) -> bytes:
        return b2a_base64(hmac.digest(self._key, signed_content, "sha256"), newline=False)

    def sign(self, signed_content: bytes) -> str:
        """Return ``v1,`` + base64 of the HMAC."""
        return "v1," + self._digest(signed_content).decode("ascii")

    def matches(self, signed_content: bytes, signature: bytes) -> bool:
        """Compare in constant time, on bytes."""
        return hmac.compare_digest(self._digest(signed_content), signature)


class VerifyingKey(Secret):
    """A ``whpk_`` public key: verifies Ed25519 signatures."""

    __slots__ = ("_public",)
    version = "v1a"

    def __init__(self, text: str, public: Ed25519PublicKey) -> None:
        super().__init__(text)
        self._public = public

    def sign(self, signed_content: bytes) -> str:
        """Refuse: a public key can't sign."""
        raise SecretError(
            f"a {VERIFYING_PREFIX} key is public and only verifies; sign with {SIGNING_PREFIX}"
        )

    def matches(self, signed_content: bytes, signature: bytes) -> bool:
        """Verify an Ed25519 signature given as strict base64."""
        try:
            raw = a2b_base64(signature, strict_mode=True)
            # One signature has one spelling: no spare bits, no other padding.
            if len(raw) != _SIGNATURE_BYTES or b2a_base64(raw, newline=False) != signature:
                return False
            self._public.verify(raw, signed_content)
        except (ValueError, InvalidSignature):
            return False
        return True


class SigningKey(VerifyingKey):
    """A ``whsk_`` private key: signs with Ed25519, and verifies its own signatures."""

    __slots__ = ("_private",)

    def __init__(self, text: str, private: Ed25519PrivateKey) -> None:
        super().__init__(text, private.public_key())
        self._private = private

    def sign(self, signed_content: bytes) -> str:
        """Return ``v1a,`` + base64 of the Ed25519 signature."""
        signature = b2a_base64(self._private.sign(signed_content), newline=False)
        return "v1a," + signature.decode("ascii")

    def verifying_key(self) -> VerifyingKey:
        """Return the public half, to give to receivers."""
        raw = self._public.public_bytes_raw()
        return VerifyingKey(_spell(VERIFYING_PREFIX, raw), self._public)


def generate_secret(kind: Literal["whsec", "whsk"] = "whsec", size: int = 32) -> str:
    """Return a new secret from the operating system's randomness.

    Parameters:
        kind: ``whsec`` for HMAC (the default), ``whsk`` for an Ed25519 key pair.
        size: Bytes of a ``whsec`` secret, 24 to 64. Of no effect on ``whsk``.

    Raises:
        SecretError: Unknown kind, or a size outside 24 to 64.
    """
    if kind == "whsec":
        if isinstance(size, bool) or not isinstance(size, int):
            raise SecretError("size is a whole number of bytes")
        if not MIN_HMAC_BYTES <= size <= MAX_HMAC_BYTES:
            raise SecretError(f"size is {MIN_HMAC_BYTES} to {MAX_HMAC_BYTES} bytes, not {size}")
        return _spell(HMAC_PREFIX, os.urandom(size))
    if kind == "whsk":
        private = Ed25519PrivateKey.generate()
        seed, public = private.private_bytes_raw(), private.public_key().public_bytes_raw()
        return _spell(SIGNING_PREFIX, seed + public)
    raise SecretError("kind is 'whsec' or 'whsk'")


def parse_secret(text: object) -> Secret:
    """Return the parsed secret.

    Raises:
        SecretError: Not acceptable; the message names what is wrong (prefix, alphabet, padding,
            length, white space) and never contains the secret.
    """
    if isinstance(text, Secret):
        return text
    if text is None:
        raise SecretError("the secret is missing (None)")
    if not isinstance(text, str):
        raise SecretError(f"a secret is a str, not {type(text).__name__}")
    text = str.__str__(text)
    prefix, encoded = _split(text)
    raw = _decode(encoded, prefix)
    if prefix == HMAC_PREFIX:
        if not MIN_HMAC_BYTES <= len(raw) <= MAX_HMAC_BYTES:
            raise SecretError(
                f"length: a {prefix} secret has {MIN_HMAC_BYTES} to {MAX_HMAC_BYTES} bytes, "
                f"this one has {len(raw)}"
            )
        return HmacSecret(text, raw)
    if prefix == SIGNING_PREFIX:
        return _signing_key(text, raw)
    return _verifying_key(text, raw)


def public_key(secret: str | Secret) -> str:
    """Return the ``whpk_`` text for a ``whsk_`` secret (or for a ``whpk_`` key: itself).

    Raises:
        SecretError: Not acceptable, or a ``whsec_`` secret, which has no public half.
    """
    parsed = parse_secret(secret)
    if isinstance(parsed, SigningKey):
        return parsed.verifying_key().reveal()
    if isinstance(parsed, VerifyingKey):
        return parsed.reveal()
    raise SecretError(f"prefix: a {HMAC_PREFIX} secret has no public half; use {SIGNING_PREFIX}")


def _spell(prefix: str, raw: bytes) -> str:
    return prefix + b2a_base64(raw, newline=False).decode("ascii")


def _split(text: str) -> tuple[str, str]:
    if not text:
        raise SecretError("the secret is empty")
    if not text.strip():
        raise SecretError("white space: the secret is blank")
    if text.split() != [text]:
        raise SecretError("white space: a secret contains none, before, inside or after it")
    for prefix in (HMAC_PREFIX, SIGNING_PREFIX, VERIFYING_PREFIX):
        if text.startswith(prefix):
            return prefix, text[len(prefix) :]
    if text.startswith(("v1,", "v1a,")):
        version = text.partition(",")[0]
        raise SecretError(
            f"prefix: '{version},' belongs to a signature, not to a secret; "
            f"remove it, so that the secret starts with {HMAC_PREFIX}"
        )
    raise SecretError(
        f"prefix: a secret starts with {HMAC_PREFIX}, {SIGNING_PREFIX} or {VERIFYING_PREFIX}"
    )


def _decode(encoded: str, prefix: str) -> bytes:
    if not encoded:
        raise SecretError(f"length: there is nothing after {prefix}")
    if len(encoded) > _MAX_TEXT:
        raise SecretError(f"length: more than {_MAX_TEXT} characters after {prefix}")
    if _STANDARD_ALPHABET.fullmatch(encoded) is None:
        if _URL_SAFE_ALPHABET.fullmatch(encoded) is None:
            raise SecretError(f"alphabet: after {prefix} only A-Z a-z 0-9 + / and = are allowed")
        if "-" in encoded or "_" in encoded:
            raise SecretError("alphabet: '-' and '_' are URL-safe base64; use '+' and '/'")
        raise SecretError("padding: '=' is only allowed at the end, at most twice")
    if len(encoded) % 4:
        raise SecretError("padding: base64 is padded with '=' to a multiple of four characters")
    try:
        raw = a2b_base64(encoded.encode("ascii"), strict_mode=True)
    except ValueError:
        raise SecretError("padding: not well-formed base64") from None
    if b2a_base64(raw, newline=False).decode("ascii") != encoded:
        raise SecretError("padding: unused bits of the last base64 character are not zero")
    return raw


def _signing_key(text: str, raw: bytes) -> SigningKey:
    if len(raw) != 2 * _SEED_BYTES:
        raise SecretError(
            f"length: a {SIGNING_PREFIX} key has 64 bytes (seed and public key), not {len(raw)}"
        )
    private = Ed25519PrivateKey.from_private_bytes(raw[:_SEED_BYTES])
    if private.public_key().public_bytes_raw() != raw[_SEED_BYTES:]:
        raise SecretError("the public half of this whsk_ key does not belong to its seed")
    return SigningKey(text, private)


def _verifying_key(text: str, raw: bytes) -> VerifyingKey:
    if len(raw) != _SEED_BYTES:
        raise SecretError(f"length: a {VERIFYING_PREFIX} key has 32 bytes, not {len(raw)}")
    if raw[:-1] + bytes([raw[-1] & 0x7F]) in _SMALL_ORDER:
        raise SecretError("this whpk_ key is a degenerate point, under which anyone can sign")
    return VerifyingKey(text, Ed25519PublicKey.from_public_bytes(raw))
