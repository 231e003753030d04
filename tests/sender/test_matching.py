"""Event-type filters."""

from __future__ import annotations

import pytest

from sender.errors import PublishError
from sender.matching import MAX_PATTERNS, check_patterns, matches

TABLE = [
    (None, "invoice.paid", True),
    ([], "invoice.paid", True),
    (["*"], "invoice.paid", True),
    (["invoice.paid"], "invoice.paid", True),
    (["invoice.paid"], "invoice.paid.late", False),
    (["invoice.paid"], "invoice", False),
    (["invoice.*"], "invoice.paid", True),
    (["invoice.*"], "invoice.paid.late", True),
    (["invoice.*"], "invoice", False),
    (["invoice.*"], "invoices.paid", False),
    (["invoice.*"], "invoice.", True),
    (["invoice.paid.*"], "invoice.paid", False),
    (["a", "b", "invoice.*"], "invoice.paid", True),
    (["Invoice.paid"], "invoice.paid", False),
]


@pytest.mark.parametrize(("patterns", "event_type", "expected"), TABLE)
def test_matching(patterns: list[str] | None, event_type: str, expected: bool) -> None:
    assert matches(patterns, event_type) is expected


def test_filters_keep_their_order_and_lose_repeats() -> None:
    assert check_patterns(["b.*", "a", "*", "a"]) == ["b.*", "a", "*"]
    assert check_patterns([]) == []


@pytest.mark.parametrize(
    "pattern",
    ["", "a.", ".a", "a.*.b", "*.a", "a*", "**", ".*", "a..*", "a b", 'a"', "a\x00", "é", None, 5],
)
def test_bad_patterns_are_named(pattern: object) -> None:
    with pytest.raises(PublishError, match="event_types"):
        check_patterns(["ok", pattern])  # type: ignore[list-item]


def test_too_many_patterns() -> None:
    check_patterns([f"t{n}" for n in range(MAX_PATTERNS)])
    with pytest.raises(PublishError, match="event_types"):
        check_patterns([f"t{n}" for n in range(MAX_PATTERNS + 1)])
