"""The envelope: the exact bytes of an event, made once at publish and never again.

``{"id":"evt_…","type":"invoice.paid","timestamp":"2026-11-29T10:00:00Z","data":{…}}``:
compact JSON, UTF-8 without ``\\u`` escapes where none are needed, keys in publish order. What could
not arrive unchanged everywhere is refused here, at publish, and never found out in a worker.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta, timezone
from typing import Final

from wire.errors import EnvelopeError, EnvelopeTooLargeError
from wire.ids import EVENT, id_time, new_id
from wire.rawjson import MAX_DEPTH, MAX_DIGITS, RawJson

DEFAULT_SIZE_LIMIT: Final = 256 * 1024
"""Bytes of a body unless a platform sets another limit (256 KiB)."""
MAX_EVENT_TYPE: Final = 128
_EVENT_TYPE: Final = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
_PLAIN_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_TIMESTAMP: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?"
    r"(?:Z|([+-])([0-9]{2}):([0-9]{2}))"
)
_LEAVES: Final = frozenset({str, int, float, bool, type(None)})
_encode: Final = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False
).encode


def check_event_type(name: object) -> str:
    """Return ``name`` if it is an event type, such as ``invoice.paid``.

    One or more segments of ASCII letters, digits, ``_`` and ``-``, joined by single dots; at most
    128 characters. Case matters.

    Raises:
        EnvelopeError: It is not.
    """
    if not isinstance(name, str):
        raise EnvelopeError(f"type: an event type is a str, not {type(name).__name__}")
    if len(name) > MAX_EVENT_TYPE:
        raise EnvelopeError(f"type: an event type has at most {MAX_EVENT_TYPE} characters")
    if _EVENT_TYPE.fullmatch(name) is None:
        raise EnvelopeError(
            "type: an event type is segments of ASCII letters, digits, '_' and '-', joined by "
            "dots, such as invoice.paid"
        )
    return name


def format_timestamp(moment: datetime) -> str:
    """Return RFC 3339 text in UTC with ``Z``; a fraction, of six digits, only if not zero.

    Raises:
        EnvelopeError: ``moment`` is not an aware datetime.
    """
    _check_aware(moment)
    try:
        return moment.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"
    except OverflowError:
        raise EnvelopeError("timestamp: outside the years 1 to 9999 in UTC") from None


def parse_timestamp(text: object) -> datetime:
    """Return the UTC datetime of RFC 3339 text with ``Z`` or an offset.

    Digits of a fraction beyond microseconds are cut off.

    Raises:
        EnvelopeError: Not such text (white space, no offset, and dates that don't exist included).
    """
    found = _TIMESTAMP.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise EnvelopeError("timestamp: expected RFC 3339 with offset, like 2026-11-29T10:00:00Z")
    year, month, day, hour, minute, second = (int(part) for part in found.groups()[:6])
    fraction, sign, offset_hours, offset_minutes = found.groups()[6:]
    try:
        zone = UTC
        if sign:
            if int(offset_minutes) > 59:
                raise EnvelopeError("timestamp: an offset has at most 59 minutes")
            offset = timedelta(hours=int(offset_hours), minutes=int(offset_minutes))
            zone = timezone(-offset if sign == "-" else offset)
        microsecond = int((fraction or "")[:6].ljust(6, "0"))
        return datetime(
            year, month, day, hour, minute, second, microsecond, tzinfo=zone
        ).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise EnvelopeError(f"timestamp: {error}") from None


def encode_event(id: str, type: str, timestamp: datetime, data: object) -> bytes:  # noqa: A002
    """Return the bytes to store, sign and send on every attempt.

    Parameters:
        id: The event id.
        type: The event type, see :func:`check_event_type`.
        timestamp: When it happened; an aware datetime.
        data: dict (str keys), list, tuple, str, int, float, bool or None, nested at most 100
            deep, or :class:`RawJson`, which is inserted byte for byte. Anything else (Decimal,
            date, UUID, bytes, set, …) is refused rather than converted: how to spell it is the
            publisher's choice.

    Raises:
        EnvelopeError: Something can't be sent unchanged: the message names the path to it, such
            as ``data.items[3].price``.
    """
    check_event_type(type)
    head = f'{{"id":{_text("id", id)},"type":"{type}","timestamp":"{format_timestamp(timestamp)}"'
    raw = data.content if isinstance(data, RawJson) else encode_json(data)
    return b'%b,"data":%b}' % (head.encode("utf-8"), raw)


def encode_json(data: object, *, path: str = "data") -> bytes:
    """Return ``data`` as compact JSON; the rules of :func:`encode_event`.

    Raises:
        EnvelopeError: See :func:`encode_event`; ``path`` is the name of the outermost value.
    """
    try:
        _check_containers(data, MAX_DEPTH)
        return _encode(data).encode("utf-8")
    except (ValueError, TypeError, RecursionError) as error:
        _name_fault(data, path, ())
        raise EnvelopeError(f"{path}: not serialisable ({error.__class__.__name__})") from None


def check_size(body: bytes, limit: int = DEFAULT_SIZE_LIMIT) -> bytes:
    """Return ``body`` if it has at most ``limit`` bytes (not characters).

    Raises:
        EnvelopeTooLargeError: It has more.
    """
    if len(body) > limit:
        raise EnvelopeTooLargeError(len(body), limit)
    return body


def check_event_size(type: str, data: object, limit: int = DEFAULT_SIZE_LIMIT) -> None:  # noqa: A002
    """Raise what :func:`encode_event` and :func:`check_size` would at a publish right now."""
    event_id = new_id(EVENT)
    check_size(encode_event(event_id, type, id_time(event_id), data), limit)


def _text(path: str, value: object) -> str:
    if not isinstance(value, str):
        raise EnvelopeError(f"{path}: expected a str, not {type(value).__name__}")
    _check_text(value, path)
    return _encode(value)


def _check_aware(moment: object) -> None:
    if not isinstance(moment, datetime):
        raise EnvelopeError(f"timestamp: expected a datetime, not {type(moment).__name__}")
    if moment.utcoffset() is None:
        raise EnvelopeError("timestamp: the datetime is naive; give it a time zone")


def _check_containers(value: object, depth: int) -> None:
    """Find fast what the encoder would let by: keys that are not text, and depth."""
    if isinstance(value, dict):
        "".join(value)  # takes nothing but text
        items: Iterable[object] = value.values()
    elif isinstance(value, list | tuple):
        items = value
    else:
        return
    if not depth:
        raise ValueError
    for item in items:
        if type(item) not in _LEAVES:
            _check_containers(item, depth - 1)


def _name_fault(value: object, path: str, above: tuple[int, ...]) -> None:
    """Raise for the first value that can't be sent, naming the path to it."""
    if isinstance(value, dict | list | tuple):
        if id(value) in above:
            raise EnvelopeError(f"{path}: contains itself")
        if len(above) >= MAX_DEPTH:
            raise EnvelopeError(f"{path}: nested more than {MAX_DEPTH} deep")
        above = (*above, id(value))
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise EnvelopeError(f"{path}: a key is {type(key).__name__}, not str")
            _check_text(key, f"{path}: a key")
            _name_fault(item, _step(path, key), above)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _name_fault(item, f"{path}[{index}]", above)
    else:
        _name_leaf_fault(value, path)


def _name_leaf_fault(value: object, path: str) -> None:
    if isinstance(value, str):
        _check_text(value, path)
    elif isinstance(value, int):
        try:
            int.__repr__(value)
        except ValueError:
            raise EnvelopeError(f"{path}: an integer of over {MAX_DIGITS} digits") from None
    elif isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise EnvelopeError(f"{path}: {float(value)} is not JSON")
    elif value is not None:
        raise EnvelopeError(
            f"{path}: {type(value).__name__} has no JSON form; publish it as text or number"
        )


def _check_text(value: str, path: str) -> None:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise EnvelopeError(f"{path}: contains a lone surrogate, which has no UTF-8") from None


def _step(path: str, key: str) -> str:
    return f"{path}.{key}" if _PLAIN_KEY.fullmatch(key) else f"{path}[{key[:64]!a}]"
