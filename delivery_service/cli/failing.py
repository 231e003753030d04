"""What a person sees when a command can't be done: one line, and exit status 2."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from typer.core import TyperGroup

from delivery_service.cli.output import plain
from wire.errors import SurehookError

FAILED = 2
INTERRUPTED = 130


class CommandError(SurehookError):
    """A command can't be done as asked; the message says why."""


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn Surehook's errors and the database's absence into one line on standard error."""
    try:
        yield
    except BaseException as error:
        message = explained(error)
        if message is None:
            raise
        typer.echo(f"surehook: {plain(message)}", err=True)
        raise typer.Exit(INTERRUPTED if isinstance(error, KeyboardInterrupt) else FAILED) from None


class Commands(TyperGroup):
    """The top of the command tree: every command fails in the same way."""

    def invoke(self, ctx: Any) -> Any:
        with one_line_errors():
            return super().invoke(ctx)


def explained(error: BaseException) -> str | None:
    """Return the one line that tells a person of an error; None for what is our own fault."""
    if isinstance(error, BaseExceptionGroup):
        # One fault can end several tasks; the first is the one to tell.
        return explained(error.exceptions[0])
    if isinstance(error, SurehookError):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, BrokenPipeError):
        return None  # whoever read the output has enough; typer ends quietly
    if isinstance(error, DBAPIError):
        # Its own text would show the statement and its values.
        return f"database_url: {_first_line(error.orig)}"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, PoolTimeout | OSError) or _is_asyncpg(error):
        return f"database_url: {_first_line(error)}"
    return None


def _is_asyncpg(error: BaseException) -> bool:
    # While connecting, asyncpg's own errors come through. It is imported only where it is used.
    return any(base.__module__.startswith("asyncpg.") for base in type(error).__mro__)


def _first_line(error: BaseException | None) -> str:
    lines = str(error).strip().splitlines()
    text = lines[0] if lines else type(error).__name__
    # asyncpg's errors come wrapped with the name of their class in front.
    return text.partition(">: ")[2] or text
