"""Fingerprints of requests: they tell a repeat of an idempotency key from a misuse of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def fingerprint(parts: Iterable[bytes]) -> bytes:
    """Return the SHA-256 of ``parts`` (32 bytes), each with its length in front of it."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8) + part)
    return digest.digest()
