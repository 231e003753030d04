"""Keyset pages and their opaque cursors."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from delivery_service.api.problems import Problem, invalid
from delivery_service.api.schemas.common import Page
from wire.errors import SurehookError
from wire.ids import parse_id

T = TypeVar("T")
Check = Callable[[str], str]


def last_id(prefix: str) -> Check:
    """The check of a cursor that holds the id of a page's last item."""
    return lambda text: parse_id(text, prefix)


def read_cursor(cursor: str | None, check: Check) -> str | None:
    """Return what a cursor holds, or raise the problem 422 when it is none of this list's."""
    if cursor is None:
        return None
    try:
        text = urlsafe_b64decode(cursor.encode("ascii")).decode()
        checked = check(text)
    except (ValueError, SurehookError, binascii.Error):
        raise _nonsense() from None
    # One position has one spelling; a decoder skips what it does not know.
    if write_cursor(checked) != cursor:
        raise _nonsense()
    return checked


def write_cursor(position: str) -> str:
    """Return the cursor for a position."""
    return urlsafe_b64encode(position.encode()).decode()


def page_of(
    rows: Sequence[dict[str, Any]],
    limit: int,
    show: Callable[[dict[str, Any]], T],
    position: Callable[[dict[str, Any]], str] = lambda row: str(row["id"]),
) -> Page[T]:
    """Return the page of ``rows``, which were selected with one more than ``limit``."""
    shown = rows[:limit]
    cursor = write_cursor(position(shown[-1])) if len(rows) > limit else None
    return Page(items=[show(row) for row in shown], next_cursor=cursor)


def _nonsense() -> Problem:
    return invalid("#/cursor", "is no cursor of this list", "query")
