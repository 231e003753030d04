"""Paths into parsed content: ``entry[].changes[].value.id``.

Names joined by dots, ``[]`` for every element of a list. Content of another shape has no values
there; nothing raises.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

__all__ = ["Parsed", "descend", "find"]

Parsed: TypeAlias = Any
"""Parsed content: what ``json.loads`` gives, or a form as a dict. Its shape is the sender's."""


def find(data: Parsed, path: str) -> Iterator[Parsed]:
    """Every value at `path` in parsed content; nothing where the content has another shape."""
    return _walk(data, path.split(".") if path else [])


def _walk(data: Parsed, steps: Sequence[str]) -> Iterator[Parsed]:
    if not steps:
        yield data
        return
    name, listed = steps[0].removesuffix("[]"), steps[0].endswith("[]")
    value = data.get(name) if isinstance(data, dict) else None
    if value is None:
        return
    if not listed:
        yield from _walk(value, steps[1:])
    elif isinstance(value, list):
        for item in value:
            yield from _walk(item, steps[1:])


def descend(item: Parsed) -> Iterator[Parsed]:
    """`item` and every object and list below it."""
    waiting = [item]
    while waiting:
        value = waiting.pop()
        if isinstance(value, (dict, list)):
            yield value
            waiting.extend(value.values() if isinstance(value, dict) else value)
