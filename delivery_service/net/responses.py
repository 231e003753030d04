"""What a receiver sent, made safe to keep and to show."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from delivery_service.net.guard import display_url
from delivery_service.policy.outcome import Outcome, OutcomeKind

MAX_HEADERS_KEPT = 64
MAX_HEADER_BYTES_KEPT = 8192
"""Names and values together; what exceeds it is not kept."""

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# Control characters can't be stored everywhere (NUL) or would steer a terminal (ESC).
_CONTROLS = {
    code: _REPLACEMENT for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n\r"
}

_decoder = codecs.getincrementaldecoder("utf-8")


def safe_text(data: bytes, limit: int | None = None) -> str:
    """Return bytes of a receiver as text that can be stored and shown anywhere.

    ``limit`` is in bytes. Bad UTF-8 and control characters other than tab and line ends become
    U+FFFD, and a character cut in half at the end is left out. Never raises.
    """
    cut = data if limit is None else data[:limit]
    return _decoder("replace").decode(cut, final=False).translate(_CONTROLS)


def one_line(text: str, limit: int = 300) -> str:
    """Return text for an error message: one line, without surrogates or controls, cut at limit."""
    safe = " ".join(safe_text(text.encode("utf-8", "replace")).split())
    return safe if len(safe) <= limit else safe[: limit - 1] + "…"


def kept_headers(raw: Iterable[tuple[bytes, bytes]]) -> tuple[tuple[str, str], ...]:
    """Return the first headers of an answer, within ``MAX_HEADERS_KEPT`` and their bytes' limit."""
    kept: list[tuple[str, str]] = []
    budget = MAX_HEADER_BYTES_KEPT
    for name, value in raw:
        budget -= len(name) + len(value)
        if budget < 0 or len(kept) == MAX_HEADERS_KEPT:
            break
        # Only values that aren't plain ASCII need the slow way; a parser let no control through.
        text = value.decode() if value.isascii() else safe_text(value)
        kept.append((name.decode("latin-1"), text))
    return tuple(kept)


def answered(
    status: int,
    headers: tuple[tuple[str, str], ...],
    body: bytes,
    *,
    truncated: bool,
    duration: float,
) -> Outcome:
    """Return the outcome of an attempt that got an answer: the status decides, and nothing else.

    ``duration`` is in seconds, ``truncated`` says that the body is not all that was sent.
    """
    kind, error = _verdict(status, headers)
    retry_after = None
    if kind is not OutcomeKind.DELIVERED:
        retry_after = _first(headers, "retry-after")
    return Outcome(kind, duration, status, error, headers, body, truncated, retry_after, True)


def _verdict(status: int, headers: tuple[tuple[str, str], ...]) -> tuple[OutcomeKind, str | None]:
    if 200 <= status <= 299:
        return OutcomeKind.DELIVERED, None
    if 300 <= status <= 399:
        location = _first(headers, "location")
        where = f" to {display_url(location)}" if location else ""
        return OutcomeKind.REDIRECT, f"status {status}: the redirect{where} was not followed"
    if status < 200:
        return OutcomeKind.PROTOCOL, f"status {status} ended the answer"
    return OutcomeKind.STATUS, f"status {status}"


def _first(headers: tuple[tuple[str, str], ...], wanted: str) -> str | None:
    for name, value in headers:
        if name.lower() == wanted:
            return value
    return None
