"""Payload filters: what the data of an event must be like for an endpoint to get it.

A filter is JSON, and never code::

    {"and": [
        {"path": "/total", "gte": 100},
        {"not": {"path": "/customer/country", "in": ["DE", "AT"]}}
    ]}

A condition has a ``path``, a JSON pointer (RFC 6901) into ``data``, and one or more operators, all
of which must hold: ``eq``, ``ne``, ``in``, ``gt``, ``gte``, ``lt``, ``lte``, ``prefix``,
``exists``. ``and``, ``or`` and ``not`` combine filters.

Values are compared as JSON has them: 1 equals 1.0, but neither true nor "1". ``gt`` and its kin
compare two numbers or two strings (by code point), and hold for nothing else. Where the path leads
nowhere, only ``ne`` and ``{"exists": false}`` hold.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from sender.errors import PublishError

MAX_DEPTH = 5
"""Levels of ``and``, ``or`` and ``not`` around a condition."""
MAX_CONDITIONS = 50
MAX_VALUES = 100
"""Values of one ``in``."""
MAX_POINTER = 256
MAX_STEPS = 20
MAX_BYTES = 8192
"""Of the whole filter as compact JSON."""

MISSING: Any = object()

_ESCAPE = re.compile(r"~(?![01])")
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")


def check_filter(given: Any) -> dict[str, Any]:
    """Return a payload filter if it can be used.

    Raises:
        PublishError: It can't; the message has the JSON pointer to what is wrong with it.
    """
    _check(given, "filter", 0, [0])
    try:
        size = len(json.dumps(given, ensure_ascii=False, separators=(",", ":")).encode())
    except UnicodeEncodeError:
        raise PublishError("filter: contains a lone surrogate") from None
    if size > MAX_BYTES:
        raise PublishError(f"filter: {size} bytes; the limit is {MAX_BYTES}")
    checked: dict[str, Any] = given
    return checked


def fits(given: Mapping[str, Any], data: Any) -> bool:
    """Whether data (as parsed from JSON) is what a checked filter asks for."""
    if "and" in given:
        return all(fits(each, data) for each in given["and"])
    if "or" in given:
        return any(fits(each, data) for each in given["or"])
    if "not" in given:
        return not fits(given["not"], data)
    value = _at(given["path"], data)
    return all(
        _OPERATORS[name][1](value, wanted) for name, wanted in given.items() if name != "path"
    )


def _check(given: Any, at: str, depth: int, seen: list[int]) -> None:
    if not isinstance(given, dict) or not given:
        raise PublishError(f"{at}: must be an object, such as {{'path': '/total', 'gt': 100}}")
    if "path" in given:
        _check_condition(given, at, seen)
        return
    if len(given) > 1 or next(iter(given)) not in ("and", "or", "not"):
        raise PublishError(f"{at}: must have a path with operators, or one of and, or, not")
    if depth == MAX_DEPTH:
        raise PublishError(f"{at}: nested more than {MAX_DEPTH} deep")
    ((name, parts),) = given.items()
    if name == "not":
        _check(parts, f"{at}/not", depth + 1, seen)
        return
    if not isinstance(parts, list) or not parts:
        raise PublishError(f"{at}/{name}: must be a list of at least one filter")
    for position, part in enumerate(parts):
        _check(part, f"{at}/{name}/{position}", depth + 1, seen)


def _check_condition(given: dict[str, Any], at: str, seen: list[int]) -> None:
    seen[0] += 1
    if seen[0] > MAX_CONDITIONS:
        raise PublishError(f"filter: more than {MAX_CONDITIONS} conditions")
    path = given["path"]
    if not isinstance(path, str) or len(path) > MAX_POINTER or path.count("/") > MAX_STEPS:
        raise PublishError(
            f"{at}/path: must be a JSON pointer of at most {MAX_POINTER} characters and"
            f" {MAX_STEPS} steps"
        )
    if (path and not path.startswith("/")) or _ESCAPE.search(path):
        raise PublishError(f"{at}/path: must be a JSON pointer into data, such as '/total'")
    if len(given) == 1:
        raise PublishError(f"{at}: name an operator: {', '.join(_OPERATORS)}")
    for name, wanted in given.items():
        if name == "path":
            continue
        if name not in _OPERATORS:
            raise PublishError(f"{at}: {name[:32]!r} is none of {', '.join(_OPERATORS)}")
        what, is_good = _WANTED[_OPERATORS[name][0]]
        if not is_good(wanted):
            raise PublishError(f"{at}/{name}: must be {what}")


def _at(path: str, data: Any) -> Any:
    for step in path.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(data, dict) and key in data:
            data = data[key]
        elif isinstance(data, list) and _INDEX.fullmatch(key) and int(key) < len(data):
            data = data[int(key)]
        else:
            return MISSING
    return data


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    # Neither NaN nor infinite, which are no JSON; an integer is, however large.
    return _is_number(value) and value - value == 0


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | bool) or _is_finite(value)


def _equal(value: Any, wanted: Any) -> bool:
    if _is_number(value) and _is_number(wanted):
        return bool(value == wanted)
    return type(value) is type(wanted) and bool(value == wanted)


def _compared(how: Callable[[Any, Any], Any]) -> Callable[[Any, Any], bool]:
    def holds(value: Any, wanted: Any) -> bool:
        both_numbers = _is_number(value) and _is_number(wanted)
        both_strings = isinstance(value, str) and isinstance(wanted, str)
        return (both_numbers or both_strings) and bool(how(value, wanted))

    return holds


_WANTED: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "scalar": ("a string, a number, true, false or null", _is_scalar),
    "scalars": (
        f"a list of 1 to {MAX_VALUES} strings, numbers, true, false or null",
        lambda given: (
            isinstance(given, list)
            and 1 <= len(given) <= MAX_VALUES
            and all(_is_scalar(each) for each in given)
        ),
    ),
    "order": ("a number or a string", lambda given: isinstance(given, str) or _is_finite(given)),
    "text": ("a string", lambda given: isinstance(given, str)),
    "flag": ("true or false", lambda given: isinstance(given, bool)),
}
_OPERATORS: Mapping[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "eq": ("scalar", _equal),
    "ne": ("scalar", lambda value, wanted: not _equal(value, wanted)),
    "in": ("scalars", lambda value, wanted: any(_equal(value, each) for each in wanted)),
    "gt": ("order", _compared(operator.gt)),
    "gte": ("order", _compared(operator.ge)),
    "lt": ("order", _compared(operator.lt)),
    "lte": ("order", _compared(operator.le)),
    "prefix": ("text", lambda value, wanted: isinstance(value, str) and value.startswith(wanted)),
    "exists": ("flag", lambda value, wanted: (value is not MISSING) is wanted),
}
