"""Lengths of time and moments, as they are typed: `2h`, or `2026-11-29T10:00:00Z`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from delivery_service.cli.failing import CommandError
from wire.envelope import parse_timestamp
from wire.errors import SurehookError

_LENGTH = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(ms|s|m|h|d)", re.ASCII)
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
LONGEST = timedelta(days=36_500)


def length_of(option: str, text: str) -> timedelta:
    """Return the length of time that ``2h`` or ``30m`` means, at most 100 years.

    Raises `CommandError`, which names ``option``, for anything else.
    """
    found = _LENGTH.fullmatch(text.strip())
    if found is None:
        raise CommandError(f"{option}: {text!r} is not one length of time, such as 2h or 30m")
    seconds = float(found[1]) * _UNITS[found[2]]
    if seconds > LONGEST.total_seconds():
        raise CommandError(f"{option}: {text!r} is longer than 100 years")
    return timedelta(seconds=seconds)


def moment_of(option: str, text: str | None) -> datetime | None:
    """Return the moment so long ago (``2h``), or the one given (``2026-11-29T10:00:00Z``).

    Raises `CommandError`, which names ``option``, for anything else; None stays None.
    """
    if text is None:
        return None
    if "-" not in text:
        return datetime.now(UTC) - length_of(option, text)
    return time_of(option, text, ", nor a length such as 2h")


def time_of(option: str, text: str, other: str = "") -> datetime:
    """Return the moment given (``2026-11-29T10:00:00Z``).

    Raises `CommandError`, which names ``option`` and what ``other`` form it has, for anything else.
    """
    try:
        return parse_timestamp(text)
    except SurehookError:
        raise CommandError(
            f"{option}: {text!r} is not a time such as 2026-11-29T10:00:00Z{other}"
        ) from None


def spoken(seconds: float | None) -> str:
    """Return a length of time for people, in its two largest units: ``2 h 5 min``."""
    if seconds is None:
        return "never"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
