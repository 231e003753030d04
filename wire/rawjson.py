"""JSON that travels byte for byte: ``1.10`` stays ``1.10``, duplicate keys and spaces stay.

Parsing and writing again changes bytes (``1.10`` → ``1.1``, ``1E2`` → ``100.0``, the first of two
equal keys is lost), so text that is JSON already is validated, and then left alone.
"""

from __future__ import annotations

import json
import re
from typing import Final, NoReturn

from wire.errors import EnvelopeError

MAX_DEPTH: Final = 100
"""Nesting of arrays and objects; receivers in other languages stop at 64 to 1,000."""
MAX_DIGITS: Final = 4300
"""Digits of an integer; more than that, and CPython's own parser refuses (its default limit)."""
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]')
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)")
_SURROGATE_ESCAPE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_SPACE: Final = re.compile(r"[ \t\n\r]*")


class RawJson:
    """A JSON value as text, validated and never changed. ``content`` is its UTF-8 bytes.

    An escaped NUL (``\\u0000``), U+2028, duplicate keys and numbers of any spelling are kept.
    Refused are: invalid UTF-8, a byte order mark, raw control characters in strings, ``NaN`` and
    ``Infinity``, escapes of lone surrogates, integers of more than 4,300 digits, nesting beyond
    100.

    Raises:
        EnvelopeError: It is not JSON of that kind.
    """

    __slots__ = ("content",)

    def __init__(self, content: bytes | bytearray | memoryview | str) -> None:
        text, self.content = _decode(content)
        parse_strictly(text)

    def __repr__(self) -> str:
        return f"<RawJson of {len(self.content)} bytes>"

    def __eq__(self, other: object) -> bool:
        return self.content == other.content if isinstance(other, RawJson) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.content)


def parse_strictly(text: str) -> object:
    """Return the value of JSON text after all the checks of :class:`RawJson`.

    Floats come back as float, integers as int; of equal keys the last one counts.

    Raises:
        EnvelopeError: See :class:`RawJson`.
    """
    try:
        value: object = json.loads(text, parse_constant=_refuse_constant, parse_int=_parse_int)
    except RecursionError:
        raise EnvelopeError(f"data: nested more than {MAX_DEPTH} deep") from None
    except json.JSONDecodeError as error:
        raise EnvelopeError(f"data: not JSON: {error.msg} at character {error.pos}") from None
    _check_depth(text)
    _check_surrogates(text)
    return value


def raw_members(content: bytes | str | RawJson) -> dict[str, RawJson]:
    """Return the members of a JSON object, each value exactly as it was written.

    A :class:`RawJson` is not validated again.

    For an API that takes ``{"type": …, "data": {…}}`` and must hand on ``data`` unchanged.

    Raises:
        EnvelopeError: Not an object, not valid (see :class:`RawJson`), or a member given twice.
    """
    text = _validated(content)
    if text[_skip_space(text, 0)] != "{":
        raise EnvelopeError("body: expected a JSON object")
    decoder = json.JSONDecoder(parse_int=str)
    members: dict[str, RawJson] = {}
    at = _skip_space(text, text.index("{") + 1)
    while text[at] != "}":
        name, at = decoder.raw_decode(text, at)
        start = _skip_space(text, _skip_space(text, at) + 1)
        _, end = decoder.raw_decode(text, start)
        if name in members:
            raise EnvelopeError(f"body: the member {name[:64]!a} is given twice")
        members[name] = _trusted(text[start:end])
        at = _skip_space(text, end)
        if text[at] == ",":
            at = _skip_space(text, at + 1)
    return members


def raw_items(content: bytes | str | RawJson) -> list[RawJson]:
    """Return the items of a JSON array, each exactly as it was written.

    A :class:`RawJson` is not validated again.

    Raises:
        EnvelopeError: Not an array, or not valid (see :class:`RawJson`).
    """
    text = _validated(content)
    if text[_skip_space(text, 0)] != "[":
        raise EnvelopeError("body: expected a JSON array")
    decoder = json.JSONDecoder(parse_int=str)
    items: list[RawJson] = []
    at = _skip_space(text, text.index("[") + 1)
    while text[at] != "]":
        _, end = decoder.raw_decode(text, at)
        items.append(_trusted(text[at:end]))
        at = _skip_space(text, end)
        if text[at] == ",":
            at = _skip_space(text, at + 1)
    return items


def _validated(content: bytes | str | RawJson) -> str:
    if isinstance(content, RawJson):
        return content.content.decode("utf-8")
    text, _ = _decode(content)
    parse_strictly(text)
    return text


def _trusted(text: str) -> RawJson:
    # A part of text that has been checked as a whole.
    raw = RawJson.__new__(RawJson)
    raw.content = text.encode("utf-8")
    return raw


def _skip_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _decode(content: object) -> tuple[str, bytes]:
    try:
        if isinstance(content, str):
            return content, content.encode("utf-8")
        if isinstance(content, bytes | bytearray | memoryview):
            raw = bytes(content)
            return raw.decode("utf-8"), raw
    except UnicodeDecodeError as error:
        raise EnvelopeError(f"data: not valid UTF-8 at byte {error.start}") from None
    except UnicodeEncodeError:
        raise EnvelopeError("data: contains a lone surrogate, which has no UTF-8") from None
    raise EnvelopeError(f"data: raw JSON is bytes or str, not {type(content).__name__}")


def _refuse_constant(name: str) -> NoReturn:
    raise EnvelopeError(f"data: {name} is not JSON")


def _parse_int(digits: str) -> int:
    if len(digits.lstrip("-")) > MAX_DIGITS:
        raise EnvelopeError(f"data: an integer of more than {MAX_DIGITS} digits")
    try:
        return int(digits)
    except ValueError:
        # The interpreter was started with a lower limit.
        raise EnvelopeError("data: an integer of too many digits") from None


def _check_depth(text: str) -> None:
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    for token in _TOKEN.finditer(text):
        first = token.group()[0]
        if first in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise EnvelopeError(f"data: nested more than {MAX_DEPTH} deep")
        elif first in "]}":
            depth -= 1


def _check_surrogates(text: str) -> None:
    """Refuse a lone surrogate, also in a key or in a duplicate that parsing would drop."""
    if _SURROGATE_ESCAPE.search(text) is None:
        return
    high_end = -1
    for escape in _ESCAPE.finditer(text):
        code = int(escape.group(1) or "0", 16)
        pending, high_end = high_end, -1
        is_low = 0xDC00 <= code <= 0xDFFF
        if is_low != (pending == escape.start()) or (pending >= 0 and not is_low):
            raise EnvelopeError("data: contains the escape of a lone surrogate")
        if 0xD800 <= code <= 0xDBFF:
            high_end = escape.end()
    if high_end >= 0:
        raise EnvelopeError("data: contains the escape of a lone surrogate")
