"""The ``Idempotency-Key`` header (IETF draft-ietf-httpapi-idempotency-key-header)."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Header

from delivery_service.api.problems import Problem, invalid
from sender.publish import MAX_KEY_LENGTH

# The draft's key is a string of RFC 8941: in double quotes, with \" and \\ escaped. Many clients
# send it bare.
_QUOTED = re.compile(r'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')
_BARE = re.compile(r"[\x21\x23-\x7e]+")

IdempotencyHeader = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="Makes a repeat of the request safe; bare or in double quotes. The same as the"
        " member `idempotency_key`, where there is one.",
    ),
]


def choose_key(header: str | None, member: str | None) -> str | None:
    """Return the idempotency key of a request that may name it in two places.

    Raises the problem 400 for a header that can't be read, 422 when the two differ.
    """
    if header is None:
        return member
    key = _read(header.strip(" \t"))
    if not 1 <= len(key) <= MAX_KEY_LENGTH:
        raise _malformed()
    if member is not None and member != key:
        raise invalid("#/idempotency_key", "differs from the header Idempotency-Key")
    return key


def reused(detail: str, **first: str) -> Problem:
    """The problem for a key that was used for other content; ``first`` names what holds it."""
    return Problem(422, "idempotency-key-reused", detail, members=first)


def _read(header: str) -> str:
    quoted = _QUOTED.fullmatch(header)
    if quoted:
        return re.sub(r"\\(.)", r"\1", quoted.group(1))
    if _BARE.fullmatch(header):
        return header
    raise _malformed()


def _malformed() -> Problem:
    return Problem(
        400,
        "malformed",
        f"The header Idempotency-Key must be 1 to {MAX_KEY_LENGTH} visible ASCII characters, bare"
        " or in double quotes.",
    )
