"""Header names and values: what may be sent, and what may be shown afterwards."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from enum import Enum, auto
from functools import lru_cache
from typing import Final

from wire.errors import HeaderError

MAX_NAME: Final = 128
MAX_VALUE: Final = 4096
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# RFC 9110 §5.5 without obs-text: visible ASCII, and inside the value space and tab.
_VALUE: Final = re.compile(r"(?:[\x21-\x7e](?:[\x20\x09\x21-\x7e]*[\x21-\x7e])?)?")
_CONTENT_TYPE: Final = re.compile(
    r"[!#$%&'*+.^_`|~0-9A-Za-z-]+/[!#$%&'*+.^_`|~0-9A-Za-z-]+"
    r"(?:[ \t]*;[ \t]*[!#$%&'*+.^_`|~0-9A-Za-z-]+=[!#$%&'*+.^_`|~0-9A-Za-z-]+)*"
)
FRAMING_NAMES: Final = frozenset(
    {
        "accept-encoding", "connection", "content-encoding", "content-length",
        "content-transfer-encoding", "content-type", "date", "expect", "host", "http2-settings",
        "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te",
        "trailer", "transfer-encoding", "upgrade", "user-agent", "via",
    }
)  # fmt: skip
"""Names (lower case) that belong to the HTTP client or would change what the body means."""

_SECRET_NAMES: Final = frozenset({"authorization", "proxy-authorization", "cookie", "set-cookie"})
_SECRET_PARTS: Final = ("auth", "token", "secret", "password", "api-key", "apikey", "credential")
_SIGNATURE_START: Final = re.compile(r"(?:v[0-9]{1,3}[a-z]?,|sha[0-9]{1,3}=)")
HIDDEN: Final = "***"
_SIGNATURE_LINE: Final = re.compile(f"^{_SIGNATURE_START.pattern}", re.MULTILINE)


def check_header_name(name: object) -> str:
    """Return ``name`` if it is a token of RFC 9110 §5.1 of at most 128 characters.

    Raises:
        HeaderError: It is not.
    """
    if not isinstance(name, str) or len(name) > MAX_NAME or _TOKEN.fullmatch(name) is None:
        shown = ascii(name[:64]) if isinstance(name, str) else type(name).__name__
        raise HeaderError(
            f"header name {shown}: 1 to {MAX_NAME} ASCII letters, digits and !#$%&'*+-.^_`|~ only"
        )
    return name


def check_header_value(name: str, value: object) -> str:
    """Return ``value`` if it may be sent: printable ASCII, at most 4,096 characters.

    Raises:
        HeaderError: It has line breaks, control or non-ASCII characters, or outer white space.
    """
    if not isinstance(value, str):
        raise HeaderError(f"header {name}: the value is a str, not {type(value).__name__}")
    if len(value) > MAX_VALUE:
        raise HeaderError(f"header {name}: the value has at most {MAX_VALUE} characters")
    if _VALUE.fullmatch(value) is None:
        raise HeaderError(
            f"header {name}: the value is printable ASCII, without line breaks and without "
            "white space around it"
        )
    return value


def check_content_type(text: object) -> str:
    """Return ``text`` if it is a content type such as ``application/xml;charset=utf-8``.

    Parameters are tokens: a quoted ``charset="utf-8"`` makes some receivers answer 500.

    Raises:
        HeaderError: It is not, or has more than 255 characters.
    """
    if not isinstance(text, str) or len(text) > 255 or _CONTENT_TYPE.fullmatch(text) is None:
        raise HeaderError("content type: expected type/subtype;name=value, tokens without quotes")
    return text


def redact_headers(headers: Mapping[str, str], *, hide: Collection[str] = ()) -> dict[str, str]:
    """Return the headers of an attempt as they may be stored and shown.

    Signatures keep their version (``v1,*** v1a,***``). Values of Authorization, Cookie and the
    like, of names with ``token``, ``secret``, ``api-key`` … in them, and of those in ``hide`` (any
    case) become ``***``.
    """
    redacted = dict(headers)
    telling, silent = _sorted_out(tuple(headers))
    for name, kind in telling:
        redacted[name] = HIDDEN if kind is _Kind.SECRET else _redact_signatures(headers[name])
    if _SIGNATURE_LINE.search("\n".join([headers[name] for name in silent])):
        for name in silent:
            if _SIGNATURE_START.match(headers[name]):
                redacted[name] = _redact_signatures(headers[name])
    if hide:
        hidden = {name.lower() for name in hide}
        redacted.update({name: HIDDEN for name in headers if name.lower() in hidden})
    return redacted


class _Kind(Enum):
    SECRET = auto()
    SIGNATURE = auto()
    OPEN = auto()


@lru_cache(maxsize=1024)
def _sorted_out(
    names: tuple[str, ...],
) -> tuple[tuple[tuple[str, _Kind], ...], tuple[str, ...]]:
    """The names that say something of their value, and those that don't. Few such tuples occur,
    and each occurs often."""
    kinds = [(name, _kind(name)) for name in names]
    telling = tuple((name, kind) for name, kind in kinds if kind is not _Kind.OPEN)
    return telling, tuple(name for name, kind in kinds if kind is _Kind.OPEN)


def _kind(name: str) -> _Kind:
    lower = name.lower()
    if lower in _SECRET_NAMES or any(part in lower for part in _SECRET_PARTS):
        return _Kind.SECRET
    return _Kind.SIGNATURE if "signature" in lower else _Kind.OPEN


def _redact_signatures(value: str) -> str:
    return " ".join([_redact_signature(part) for part in value.split(" ") if part])


def _redact_signature(token: str) -> str:
    start = _SIGNATURE_START.match(token)
    return f"{start.group() if start else ''}{HIDDEN}"
