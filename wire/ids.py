"""Ids: ``prefix_`` + ULID, sortable by creation time as plain text (C collation).

A ULID is 48 bits of Unix milliseconds and 80 random bits in Crockford's base 32
(https://github.com/ulid/spec), so ids that are compared as text are compared by time, and a time
filter is a range of ids (:func:`first_id`).
"""

from __future__ import annotations

import os
import re
import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from threading import Lock
from typing import Final

from ulid import base32

from wire.errors import IdError

EVENT: Final = "evt"
DELIVERY: Final = "dlv"
ATTEMPT: Final = "att"
ENDPOINT: Final = "ep"
API_KEY: Final = "key"
WORKER: Final = "wrk"
OPERATION: Final = "op"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_PREFIX: Final = re.compile(r"[a-z][a-z0-9]{0,15}")
# The first of 26 characters holds the top 3 of 128 bits, so it is at most 7 (ULID spec, overflow).
_ULID: Final = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
_ULID_LENGTH: Final = 26
_MAX_MS: Final = 2**48 - 1
# Two characters, ten bits, at a time: a third of the time of one by one.
_PAIRS: Final = tuple(high + low for high in base32.ENCODE for low in base32.ENCODE)
_REMEMBERED_MOMENTS: Final = 64
# How far ids may be ahead of a clock that was set back. More than a leap second, and than the steps
# by which time daemons mend a clock in passing (ntpd 128 ms, systemd-timesyncd 400 ms, chrony's
# usual `makestep` 1 s). A clock that is set back further was wrong before.
_MOST_AHEAD_MS: Final = 2_000


def _fresh_random() -> int:
    # The top bit stays clear, so that counting up inside a millisecond can't overflow 80 bits.
    return int.from_bytes(os.urandom(10), "big") >> 1


def _encode_random(value: int) -> str:
    pairs = _PAIRS
    return (
        pairs[value >> 70 & 1023]
        + pairs[value >> 60 & 1023]
        + pairs[value >> 50 & 1023]
        + pairs[value >> 40 & 1023]
        + pairs[value >> 30 & 1023]
        + pairs[value >> 20 & 1023]
        + pairs[value >> 10 & 1023]
        + pairs[value & 1023]
    )


@lru_cache(maxsize=256)
def _encode_time(ms: int) -> str:
    return base32.encode_timestamp(ms.to_bytes(6, "big"))


@lru_cache(maxsize=256)
def _decode_time(text: str) -> datetime:
    ms = int.from_bytes(base32.decode_timestamp(text), "big")
    try:
        return _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        raise IdError("the id's time is after the year 9999") from None


class _Generator:
    """The last id of this process: what the next one has to be greater than."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._lock = Lock()
        self._clock_ms = 0
        self._clock_text = _encode_time(0)
        self._clock_random = 0
        self._given: dict[int, int] = {}

    def by_clock(self) -> str:
        with self._lock:
            ms = time.time_ns() // 1_000_000
            if ms > self._clock_ms or ms < self._clock_ms - _MOST_AHEAD_MS:
                self._clock_ms = ms
                self._clock_text = _encode_time(ms)
                self._clock_random = _fresh_random()
            else:
                # Same millisecond, or the clock was set back a little: go on from the last id.
                self._clock_random += 1
            return self._clock_text + _encode_random(self._clock_random)

    def by_moment(self, ms: int) -> str:
        with self._lock:
            last = self._given.pop(ms, None)
            value = _fresh_random() if last is None else last + 1
            # Put back as the newest; the oldest millisecond is the one to forget.
            self._given[ms] = value
            if len(self._given) > _REMEMBERED_MOMENTS:
                del self._given[next(iter(self._given))]
        return _encode_time(ms) + _encode_random(value)


_generator: Final = _Generator()
if hasattr(os, "register_at_fork"):
    # A child starts from fresh randomness (or it would count up to the ids of its parent), and with
    # a lock of its own (another thread of the parent may have held the inherited one).
    os.register_at_fork(after_in_child=_generator.reset)

_known_prefixes: Final = {EVENT, DELIVERY, ATTEMPT, ENDPOINT, API_KEY, WORKER, OPERATION}


def _check_prefix(prefix: object) -> None:
    if not isinstance(prefix, str) or _PREFIX.fullmatch(prefix) is None:
        raise IdError("an id's prefix is 1 to 16 lower-case ASCII letters and digits")


def _milliseconds(moment: datetime) -> int:
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise IdError("an id's moment needs a time zone")
    return (moment - _EPOCH) // _MILLISECOND


def new_id(prefix: str, *, now: datetime | None = None) -> str:
    """Return a new id such as ``evt_01K…``, greater than every earlier one of this process.

    Within one millisecond, and while the clock is behind the last id by up to 2 seconds, the random
    part counts up. When the clock was set back further, ids follow it, smaller than earlier ones
    and unique by their randomness: their time is when things count as created, and must not stay
    in the future. Safe across threads and after a fork.

    Parameters:
        prefix: 1 to 16 lower-case letters and digits, such as :data:`EVENT`.
        now: An aware moment to use instead of the clock. Ids of one such millisecond increase
            too (for the 64 most recently used milliseconds).

    Raises:
        IdError: The prefix is malformed, or ``now`` is naive or before 1970.
    """
    if prefix not in _known_prefixes:
        _check_prefix(prefix)
    if now is None:
        return f"{prefix}_{_generator.by_clock()}"
    ms = _milliseconds(now)
    if ms < 0:
        raise IdError("an id's moment can't be before 1970")
    return f"{prefix}_{_generator.by_moment(ms)}"


def parse_id(text: object, prefix: str) -> str:
    """Return ``text`` if it is a well-formed id with ``prefix``.

    Strict, so that one thing has one spelling: upper case, no look-alike letters, 26 characters.

    Raises:
        IdError: It is not; the message names the expected form, not the given text.
    """
    if prefix not in _known_prefixes:
        _check_prefix(prefix)
    if (
        isinstance(text, str)
        and len(text) == len(prefix) + 1 + _ULID_LENGTH
        and text.startswith(f"{prefix}_")
        and _ULID.fullmatch(text, len(prefix) + 1)
    ):
        return text
    raise IdError(f"expected an id of the form {prefix}_ + 26 characters of Crockford's base 32")


def id_time(text: str) -> datetime:
    """Return the moment inside an id: UTC, to the millisecond.

    Raises:
        IdError: Not an id, or a time after the year 9999.
    """
    ulid = parse_id(text, str(text).partition("_")[0])[-_ULID_LENGTH:]
    return _decode_time(ulid[:10])


def first_id(prefix: str, moment: datetime) -> str:
    """Return the smallest possible id of the millisecond that ``moment`` is in.

    Ids made from ``since`` up to, but not in the millisecond of, ``until`` are those with
    ``first_id(p, since) <= id < first_id(p, until)``. A moment before 1970 counts as 1970.

    Raises:
        IdError: The prefix is malformed or ``moment`` is naive.
    """
    _check_prefix(prefix)
    return f"{prefix}_{_encode_time(min(max(_milliseconds(moment), 0), _MAX_MS))}{'0' * 16}"
