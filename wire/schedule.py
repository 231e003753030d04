"""Retry schedules: the fixed delays between attempts. N delays are N+1 attempts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final, TypeVar

from wire.errors import ScheduleError

_Item = TypeVar("_Item")

MAX_DELAYS: Final = 50
MAX_HORIZON: Final = timedelta(days=60)
_MILLISECOND: Final = timedelta(milliseconds=1)
_UNITS: Final[Mapping[str, timedelta]] = MappingProxyType(
    {
        "d": timedelta(days=1),
        "h": timedelta(hours=1),
        "m": timedelta(minutes=1),
        "s": timedelta(seconds=1),
        "ms": _MILLISECOND,
    }
)
_DELAY: Final = re.compile(r"([0-9]{1,12})(ms|s|m|h|d)")
_PLAIN_SECONDS: Final = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,3})?")


@dataclass(frozen=True, slots=True)
class RetrySchedule:
    """The delays between attempts: the first attempt is made at once, then one after each delay.

    ``delays`` are whole milliseconds, 0 (again at once) to 60 days together, at most 50 of them;
    none means a single attempt.

    Raises:
        ScheduleError: The message names the delay, counted from 1, and what is wrong with it.
    """

    delays: tuple[timedelta, ...]

    def __post_init__(self) -> None:
        delays = tuple(self.delays)
        if len(delays) > MAX_DELAYS:
            raise ScheduleError(f"a schedule has at most {MAX_DELAYS} delays, not {len(delays)}")
        total = timedelta(0)
        for number, delay in enumerate(delays, 1):
            _check_delay(number, delay)
            total += delay
        if total > MAX_HORIZON:
            raise ScheduleError(f"a schedule lasts at most {MAX_HORIZON.days} days in all")
        object.__setattr__(self, "delays", delays)

    @classmethod
    def parse(cls, value: object) -> RetrySchedule:
        """Return the schedule that is meant.

        Parameters:
            value: A preset's name (``default``, ``standard-webhooks``, ``fast``); text such as
                ``1m,5m,30m,2h,6h`` with the units ms, s, m, h, d (``0`` needs none); a list of
                seconds, such texts or timedeltas; the text of a list of seconds (``[0, 0, 5]``).
                Empty text and an empty list are a schedule without retries.

        Raises:
            ScheduleError: It can't be read; the message names the delay.
        """
        if isinstance(value, RetrySchedule):
            return value
        if isinstance(value, str):
            return cls._parse_text(value.strip())
        if isinstance(value, Iterable) and not isinstance(value, bytes | bytearray | Mapping):
            return cls(tuple(_delay(number, item) for number, item in _numbered(value)))
        raise ScheduleError(
            f"a schedule is a preset's name, text such as 1m,5m,30m or a list of seconds, "
            f"not {type(value).__name__}"
        )

    @classmethod
    def _parse_text(cls, text: str) -> RetrySchedule:
        if text in PRESETS:
            return PRESETS[text]
        in_seconds = text.startswith("[") and text.endswith("]")
        if in_seconds:
            text = text[1:-1].strip()
        if not text:
            return cls(())
        # Cut off early: the rest of a far too long text is one part that nobody looks at.
        parts = _numbered(text.split(",", MAX_DELAYS))
        return cls(tuple(_text_delay(number, part, in_seconds) for number, part in parts))

    @property
    def horizon(self) -> timedelta:
        """From the first attempt to the last, if every attempt fails at once."""
        return sum(self.delays, timedelta(0))

    @property
    def max_attempts(self) -> int:
        """Number of delays plus one."""
        return len(self.delays) + 1

    def delay_after(self, attempt: int) -> timedelta | None:
        """Return how long to wait after attempt number ``attempt`` (from 1); None: it was the last.

        Raises:
            ScheduleError: ``attempt`` is under 1.
        """
        if attempt < 1:
            raise ScheduleError(f"attempts are numbered from 1, not {attempt}")
        return self.delays[attempt - 1] if attempt <= len(self.delays) else None

    def preview(self, start: datetime) -> list[datetime]:
        """Return when each attempt happens if the first is at ``start`` and all fail at once."""
        moments = [start]
        for delay in self.delays:
            moments.append(moments[-1] + delay)
        return moments

    def to_seconds(self) -> list[int | float]:
        """Return the delays in seconds, whole ones as int: the JSON form."""
        seconds = (delay.total_seconds() for delay in self.delays)
        return [int(value) if value.is_integer() else value for value in seconds]

    def __str__(self) -> str:
        """Return text that :meth:`parse` reads as the same schedule."""
        return ",".join(_spell(delay) for delay in self.delays) or "[]"


def _numbered(values: Iterable[_Item]) -> Iterator[tuple[int, _Item]]:
    # Bounded before it is a tuple, since the source may be endless.
    for number, value in enumerate(values, 1):
        if number > MAX_DELAYS:
            raise ScheduleError(f"a schedule has at most {MAX_DELAYS} delays")
        yield number, value


def _check_delay(number: int, delay: object) -> None:
    if not isinstance(delay, timedelta):
        raise ScheduleError(f"delay {number} is a timedelta, not {type(delay).__name__}")
    if delay < timedelta(0):
        raise ScheduleError(f"delay {number} is negative")
    if delay > MAX_HORIZON:
        raise ScheduleError(f"delay {number} is over {MAX_HORIZON.days} days")
    if delay % _MILLISECOND:
        raise ScheduleError(f"delay {number} is finer than a millisecond")


def _delay(number: int, item: object) -> timedelta:
    if isinstance(item, timedelta):
        return item
    if isinstance(item, str):
        return _text_delay(number, item, in_seconds=False)
    if isinstance(item, bool) or not isinstance(item, int | float):
        raise ScheduleError(f"delay {number} is a number of seconds, not {type(item).__name__}")
    if isinstance(item, float) and not math.isfinite(item):
        raise ScheduleError(f"delay {number} is not a finite number")
    if item < 0:
        raise ScheduleError(f"delay {number} is negative")
    if item > MAX_HORIZON.total_seconds():
        raise ScheduleError(f"delay {number} is over {MAX_HORIZON.days} days")
    return timedelta(seconds=item)


def _text_delay(number: int, part: str, in_seconds: bool) -> timedelta:
    text = part.strip(" \t")
    if not text:
        raise ScheduleError(f"delay {number} is empty")
    if text.startswith("-"):
        raise ScheduleError(f"delay {number} is negative")
    found = _DELAY.fullmatch(text)
    if found:
        count, unit = int(found.group(1)), _UNITS[found.group(2)]
        if count > MAX_HORIZON // unit:
            raise ScheduleError(f"delay {number} is over {MAX_HORIZON.days} days")
        return count * unit
    if _PLAIN_SECONDS.fullmatch(text):
        if in_seconds or float(text) == 0:
            return _delay(number, float(text))
        raise ScheduleError(f"delay {number} has no unit: write {text}s, {text}m or {text}h")
    raise ScheduleError(
        f"delay {number} ({text[:32]!a}) is not a whole number and a unit (ms, s, m, h or d), nor "
        f"is the schedule a preset ({', '.join(PRESETS)})"
    )


def _spell(delay: timedelta) -> str:
    if not delay:
        return "0"
    for unit, size in _UNITS.items():
        if not delay % size:
            return f"{delay // size}{unit}"
    return f"{delay // _MILLISECOND}ms"


PRESETS: Final[Mapping[str, RetrySchedule]] = MappingProxyType(
    {
        name: RetrySchedule(tuple(_delay(*item) for item in enumerate(delays.split(","), 1)))
        for name, delays in (
            ("default", "1m,5m,30m,2h,6h"),
            # The example schedule of Standard Webhooks 1.0.0.
            ("standard-webhooks", "5s,5m,30m,2h,5h,10h,14h,20h,24h"),
            # As many attempts as `default`, within 10 seconds: for demos.
            ("fast", "1s,1s,2s,2s,4s"),
        )
    }
)
"""Schedules by name: ``default`` has 6 attempts within 8 h 36 min."""
