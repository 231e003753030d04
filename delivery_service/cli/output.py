"""How results are shown: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from wire.envelope import format_timestamp

WIDTH = 200
"""Columns of output that does not go to a terminal: wide enough for rows with three ids."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Limit = Annotated[int, typer.Option(min=1, max=1000, help="Most rows to show.")]
Before = Annotated[
    str | None, typer.Option(metavar="ID", help="Show what comes after this row: the next page.")
]

_STYLES = {
    "delivered": "green",
    "enabled": "green",
    "closed": "green",
    "pending": "yellow",
    "open": "red",
    "dead": "red",
    "disabled": "red",
    "skipped": "magenta",
    "cancelled": "magenta",
}


def console() -> Console:
    """Return a console on standard output, as it is now."""
    return Console(
        file=sys.stdout,
        width=None if sys.stdout.isatty() else WIDTH,
        highlight=False,
        markup=False,
        emoji=False,
    )


def print_json(value: Any) -> None:
    """Print a value as JSON. Times become RFC 3339, bytes become text."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, default=encoded))


def encoded(value: Any) -> Any:
    """What JSON has no form for, as text."""
    if isinstance(value, datetime):
        return format_timestamp(value)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return str(value)


def print_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, none: str) -> None:
    """Print columns of rows as a table, or the sentence ``none`` when there are no rows."""
    if not rows:
        typer.echo(none)
        return
    console().print(table(rows, columns))


def table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> Table:
    """Columns of rows as a table; ids are never broken, so they can be copied."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        is_id = column == "id" or column.endswith("_id")
        made.add_column(column.replace("_", " "), no_wrap=is_id, overflow="fold")
    for row in rows:
        made.add_row(*(cell(row[column]) for column in columns))
    return made


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error, if that is a terminal; gives a function that moves it on."""
    errors = Console(file=sys.stderr, highlight=False, markup=False, emoji=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeRemainingColumn(), console=errors, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)


def print_fields(fields: Iterable[tuple[str, Any]]) -> None:
    """Print names and values, one pair a line. Values are never broken, so they can be copied."""
    for name, value in fields:
        typer.echo(f"{name + ':':<18}{cell(value).plain}")


def cell(value: Any) -> Text:
    """A value as text that can't do anything to a terminal."""
    if value is None:
        return Text("")
    if isinstance(value, datetime):
        return Text(format_timestamp(value.replace(microsecond=0)))
    if isinstance(value, float):
        return Text(f"{value:.3f}")
    if isinstance(value, list):
        value = ", ".join(str(item) for item in value)
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    return Text(plain(str(value)), style=_STYLES.get(str(value), ""))


def plain(text: str) -> str:
    """Return the text with escapes instead of control characters: a receiver's answer must not
    move the cursor or change the title of an operator's terminal."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )
