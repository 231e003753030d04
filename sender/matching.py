"""Which endpoints get an event: by its type, its channels and its data."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sender.errors import PublishError
from sender.filters import fits
from wire.envelope import check_event_type
from wire.errors import EnvelopeError

MAX_PATTERNS = 200
MAX_CHANNELS = 20
MAX_CHANNEL = 128
_CHANNEL = re.compile(r"[A-Za-z0-9_.:-]+")


def check_patterns(patterns: Iterable[str]) -> list[str]:
    """Return an event-type filter in the form it is stored, or raise `PublishError`.

    A pattern is an event type, ``*``, or a prefix wildcard such as ``invoice.*``. An empty
    filter matches everything.
    """
    checked: list[str] = []
    for pattern in patterns:
        stem = pattern[:-2] if isinstance(pattern, str) and pattern.endswith(".*") else pattern
        if pattern != "*":
            try:
                check_event_type(stem)
            except EnvelopeError as error:
                raise PublishError(
                    f"event_types: {pattern!r} is neither an event type, '*' nor a prefix"
                    f" wildcard such as 'invoice.*' ({error})"
                ) from None
        if pattern not in checked:
            checked.append(pattern)
    if len(checked) > MAX_PATTERNS:
        raise PublishError(f"event_types: {len(checked)} patterns; the limit is {MAX_PATTERNS}")
    return checked


def matches(patterns: Sequence[str] | None, event_type: str) -> bool:
    """Whether an event-type filter lets ``event_type`` through.

    ``invoice.*`` matches ``invoice.paid`` and ``invoice.paid.late``, but not ``invoice``.
    """
    if not patterns:
        return True
    return any(
        pattern in (event_type, "*")
        or (pattern.endswith(".*") and event_type.startswith(pattern[:-1]))
        for pattern in patterns
    )


def check_channels(channels: Iterable[str]) -> list[str]:
    """Return channels, each once, or raise `PublishError`.

    A channel is 1 to 128 letters, digits, ``_``, ``-``, ``.`` and ``:``, such as ``project:17``.
    """
    if isinstance(channels, str):
        raise PublishError("channels must be a list of channels")
    checked: list[str] = []
    for channel in channels:
        if not isinstance(channel, str) or not _CHANNEL.fullmatch(channel[: MAX_CHANNEL + 1]):
            raise PublishError(
                "channels: each is letters, digits, '_', '-', '.' and ':', such as 'project:17'"
            )
        if len(channel) > MAX_CHANNEL:
            raise PublishError(f"channels: each has at most {MAX_CHANNEL} characters")
        if channel not in checked:
            checked.append(channel)
    if len(checked) > MAX_CHANNELS:
        raise PublishError(f"channels: {len(checked)} of them; the limit is {MAX_CHANNELS}")
    return checked


class Candidate:
    """An event to be matched. Its data is parsed when the first filter asks for it, and once.

    ``body`` is the envelope; None for a raw body, which has no data and fits no filter.
    """

    def __init__(self, type: str, channels: Sequence[str] | None, body: bytes | None) -> None:  # noqa: A002
        self._type = type
        self._channels = frozenset(channels or ())
        self._body = body
        self._data: list[Any] = []

    def is_for(
        self,
        patterns: Sequence[str] | None,
        channels: Sequence[str] | None,
        payload_filter: Mapping[str, Any] | None,
    ) -> bool:
        """Whether an endpoint with these settings gets the event.

        An endpoint without channels gets the events of all and of none; one with channels only
        those that have one of them.
        """
        if not matches(patterns, self._type):
            return False
        if channels and self._channels.isdisjoint(channels):
            return False
        return not payload_filter or self._fits(payload_filter)

    def _fits(self, payload_filter: Mapping[str, Any]) -> bool:
        if self._body is None:
            return False
        if not self._data:
            self._data.append(json.loads(self._body)["data"])
        return fits(payload_filter, self._data[0])
