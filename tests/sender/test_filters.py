"""Payload filters: what they let through, and what is refused as one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sender.errors import PublishError
from sender.filters import (
    MAX_CONDITIONS,
    MAX_DEPTH,
    MAX_VALUES,
    check_filter,
    fits,
)

DATA = {
    "total": 120.5,
    "count": 1,
    "paid": True,
    "note": None,
    "country": "DE",
    "a/b": {"m~n": 1},
    "lines": [{"sku": "x"}, {"sku": "y"}],
    "": "empty",
}


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({"path": "/country", "eq": "DE"}, True),
        ({"path": "/country", "eq": "AT"}, False),
        ({"path": "/country", "ne": "AT"}, True),
        ({"path": "/country", "in": ["AT", "DE"]}, True),
        ({"path": "/country", "in": ["AT"]}, False),
        ({"path": "/country", "prefix": "D"}, True),
        ({"path": "/country", "prefix": "E"}, False),
        ({"path": "/total", "prefix": "1"}, False),
        ({"path": "/total", "gt": 120.5}, False),
        ({"path": "/total", "gte": 120.5}, True),
        ({"path": "/total", "lt": 121}, True),
        ({"path": "/total", "lte": 120}, False),
        ({"path": "/total", "gte": 100, "lt": 200}, True),
        ({"path": "/total", "gte": 100, "lt": 120}, False),
        ({"path": "/country", "gt": "CZ"}, True),
        ({"path": "/country", "gt": 1}, False),
        ({"path": "/total", "gt": "1"}, False),
        # As JSON has them: 1 is 1.0, and neither is true or text.
        ({"path": "/count", "eq": 1.0}, True),
        ({"path": "/count", "eq": True}, False),
        ({"path": "/paid", "eq": 1}, False),
        ({"path": "/paid", "eq": True}, True),
        ({"path": "/paid", "gt": 0}, False),
        ({"path": "/count", "in": [True, "1"]}, False),
        ({"path": "/note", "eq": None}, True),
        ({"path": "/note", "exists": True}, True),
        # Where the path leads nowhere.
        ({"path": "/none", "exists": True}, False),
        ({"path": "/none", "exists": False}, True),
        ({"path": "/none", "eq": None}, False),
        ({"path": "/none", "ne": 1}, True),
        ({"path": "/none", "lt": 1}, False),
        ({"path": "/country/x", "exists": True}, False),
        # Pointers.
        ({"path": "/a~1b/m~0n", "eq": 1}, True),
        ({"path": "/lines/1/sku", "eq": "y"}, True),
        ({"path": "/lines/01/sku", "exists": True}, False),
        ({"path": "/lines/2", "exists": True}, False),
        ({"path": "/lines/-", "exists": True}, False),
        ({"path": "/", "eq": "empty"}, True),
        ({"path": "", "exists": True}, True),
        # Combined.
        ({"and": [{"path": "/count", "eq": 1}, {"path": "/paid", "eq": False}]}, False),
        ({"or": [{"path": "/count", "eq": 2}, {"path": "/paid", "eq": True}]}, True),
        ({"not": {"path": "/count", "eq": 2}}, True),
        ({"not": {"or": [{"not": {"path": "/count", "eq": 1}}]}}, True),
    ],
)
def test_a_filter_lets_through_what_it_says(condition: dict[str, Any], expected: bool) -> None:
    assert fits(check_filter(condition), DATA) is expected


def _nested(depth: int) -> dict[str, Any]:
    nested: dict[str, Any] = {"path": "/a", "eq": 1}
    for _ in range(depth):
        nested = {"not": nested}
    return nested


@pytest.mark.parametrize(
    ("refused", "named"),
    [
        ([], "filter: must be an object"),
        ({}, "filter: must be an object"),
        (None, "filter: must be an object"),
        ({"path": "/a"}, "filter: name an operator"),
        ({"eq": 1}, "filter: must have a path"),
        ({"path": "a", "eq": 1}, "filter/path"),
        ({"path": "/a~2", "eq": 1}, "filter/path"),
        ({"path": 1, "eq": 1}, "filter/path"),
        ({"path": "/" + "a" * 300, "eq": 1}, "filter/path"),
        ({"path": "/a" * 30, "eq": 1}, "filter/path"),
        ({"path": "/a", "regex": ".*"}, "'regex' is none of eq"),
        ({"path": "/a", "eq": []}, "filter/eq"),
        ({"path": "/a", "eq": float("nan")}, "filter/eq"),
        ({"path": "/a", "gt": float("inf")}, "filter/gt"),
        ({"path": "/a", "gt": True}, "filter/gt"),
        ({"path": "/a", "in": []}, "filter/in"),
        ({"path": "/a", "in": "abc"}, "filter/in"),
        ({"path": "/a", "in": list(range(MAX_VALUES + 1))}, "filter/in"),
        ({"path": "/a", "prefix": 1}, "filter/prefix"),
        ({"path": "/a", "exists": 1}, "filter/exists"),
        ({"and": []}, "filter/and"),
        ({"or": {}}, "filter/or"),
        ({"and": [{"path": "/a", "eq": 1}], "or": []}, "filter: must have a path"),
        ({"and": [{"not": {"path": "/a", "x": 1}}]}, "filter/and/0/not: 'x'"),
        (_nested(MAX_DEPTH + 1), "nested more than"),
        ({"and": [{"path": "/a", "eq": 1}] * (MAX_CONDITIONS + 1)}, "more than 50 conditions"),
        ({"path": "/a", "in": ["x" * 100] * 100}, "bytes"),
        ({"path": "/a", "eq": "\ud800"}, "surrogate"),
    ],
)
def test_what_is_no_filter_is_refused_and_named(refused: Any, named: str) -> None:
    with pytest.raises(PublishError, match=named.replace("*", r"\*")):
        check_filter(refused)


def test_the_deepest_and_the_largest_are_accepted() -> None:
    check_filter(_nested(MAX_DEPTH))
    check_filter({"or": [{"path": "/a", "eq": 1}] * MAX_CONDITIONS})
    check_filter({"path": "/a", "in": list(range(MAX_VALUES))})


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=10,
)
KEYS = st.sampled_from(["and", "or", "not", "path", "eq", "ne", "in", "gt", "lt", "exists", "zz"])
ANY_FILTER = st.recursive(
    ANY_JSON | st.sampled_from(["/a", "/0", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)


@given(ANY_FILTER, ANY_JSON)
def test_anything_is_refused_or_gives_a_verdict(candidate: Any, data: Any) -> None:
    try:
        checked = check_filter(candidate)
    except PublishError:
        return
    assert fits(json.loads(json.dumps(checked)), data) in (True, False)


@given(ANY_JSON, ANY_JSON)
def test_not_and_ne_are_the_opposite(value: Any, data: Any) -> None:
    if isinstance(value, list | dict) or value in (float("inf"), float("-inf")):
        return
    equal = fits(check_filter({"path": "/a", "eq": value}), {"a": data})
    assert fits(check_filter({"path": "/a", "ne": value}), {"a": data}) is not equal
    assert fits(check_filter({"not": {"path": "/a", "eq": value}}), {"a": data}) is not equal
