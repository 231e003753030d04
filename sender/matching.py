"""Which endpoints get an event: the event-type filter of an endpoint."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sender.errors import PublishError
from wire.envelope import check_event_type
from wire.errors import EnvelopeError

MAX_PATTERNS = 200


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
