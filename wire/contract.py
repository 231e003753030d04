"""The contract that a service publishes at ``GET /.well-known/webhooks``.

It lets a receiver check, at start-up or in its tests, that its memory of delivery ids outlives
everything the sender may still repeat.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from wire.errors import WireError
from wire.profiles import DEFAULT_PREFIX
from wire.schedule import RetrySchedule
from wire.signature import DEFAULT_TOLERANCE

VERSION: Final = 1
MAX_CONTRACT_BYTES: Final = 64 * 1024
_MAX_PROFILES: Final = 32
_MAX_TEXT: Final = 128
_MAX_SECONDS: Final = 10 * 366 * 86400


@dataclass(frozen=True, slots=True)
class Contract:
    """What a sender promises, and a receiver may count on. Durations are whole seconds on the wire.

    ``replay_window`` is how long after its first attempt a delivery may be redelivered with the
    same id. ``postponement`` is how much later than the schedule says an attempt may be made, by
    ``Retry-After`` and open circuits together. ``tolerance`` is how far a timestamp may be off.
    """

    schedule: RetrySchedule
    replay_window: timedelta
    profiles: tuple[str, ...] = ("standard",)
    tolerance: timedelta = DEFAULT_TOLERANCE
    postponement: timedelta = timedelta(0)
    header_prefix: str = DEFAULT_PREFIX

    @property
    def min_dedup_ttl(self) -> timedelta:
        """How long a receiver should remember a delivery id, at least.

        A redelivery at the end of the replay window starts a fresh schedule, which may be
        postponed; and a captured message can be played again while its timestamp is within the
        tolerance, which is twice that long if it came from a clock that is ahead.
        """
        return self.replay_window + self.schedule.horizon + self.postponement + 2 * self.tolerance

    def to_dict(self) -> dict[str, object]:
        """Return the JSON object to publish."""
        return {
            "version": VERSION,
            "schedule_seconds": self.schedule.to_seconds(),
            "max_attempts": self.schedule.max_attempts,
            "horizon_seconds": _up(self.schedule.horizon),
            "replay_window_seconds": _up(self.replay_window),
            "postponement_seconds": _up(self.postponement),
            "tolerance_seconds": _up(self.tolerance),
            "min_dedup_ttl_seconds": _up(self.min_dedup_ttl),
            "profiles": list(self.profiles),
            "header_prefix": self.header_prefix,
        }

    @classmethod
    def from_dict(cls, given: object) -> Contract:
        """Return the contract that was read from a service; fields not known here are ignored.

        Derived figures (attempts, horizon, TTL) are computed again and not believed.

        Raises:
            WireError: Not such an object; the message names the field.
        """
        if not isinstance(given, Mapping):
            raise WireError("contract: expected a JSON object")
        if given.get("version") != VERSION or isinstance(given.get("version"), bool):
            raise WireError(f"contract: version is {VERSION}; a newer one needs a newer library")
        delays = given.get("schedule_seconds")
        if not isinstance(delays, list):
            raise WireError("contract: schedule_seconds is a list of seconds")
        return cls(
            schedule=RetrySchedule.parse(delays),
            replay_window=_seconds(given, "replay_window_seconds"),
            profiles=_profiles(given.get("profiles")),
            tolerance=_seconds(given, "tolerance_seconds"),
            postponement=_seconds(given, "postponement_seconds", default=0),
            header_prefix=_text("header_prefix", given.get("header_prefix", DEFAULT_PREFIX)),
        )

    @classmethod
    def from_json(cls, body: bytes) -> Contract:
        """Return the contract in the body of an answer, however hostile that is.

        Raises:
            WireError: More than 64 KiB, not JSON, or not a contract.
        """
        if len(body) > MAX_CONTRACT_BYTES:
            raise WireError(f"contract: more than {MAX_CONTRACT_BYTES} bytes")
        try:
            given = json.loads(body)
        except (ValueError, RecursionError):
            raise WireError("contract: not JSON") from None
        return cls.from_dict(given)


def _up(duration: timedelta) -> int:
    # Rounded up: a receiver that adds these figures must not remember for too short a time.
    return -(-duration // timedelta(seconds=1))


def _seconds(given: Mapping[object, object], field: str, default: int | None = None) -> timedelta:
    value = given.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_SECONDS:
        raise WireError(f"contract: {field} is a whole number of seconds, 0 to {_MAX_SECONDS}")
    return timedelta(seconds=value)


def _profiles(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= _MAX_PROFILES:
        raise WireError(f"contract: profiles is a list of 1 to {_MAX_PROFILES} names")
    return tuple(_text("profiles", item) for item in value)


def _text(field: str, value: object) -> str:
    if not isinstance(value, str) or not value.isprintable() or not 1 <= len(value) <= _MAX_TEXT:
        raise WireError(f"contract: {field} holds printable text of 1 to {_MAX_TEXT} characters")
    return value
