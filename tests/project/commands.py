"""The `surehook` commands that files name, checked against the command line that exists."""

from __future__ import annotations

import re
import shlex
from typing import Any

import typer.main

from delivery_service.cli import app

_COMMAND = re.compile(r"(?<![\w./-])surehook ([a-z][^`#|;&)\n]*)")


def commands(text: str) -> list[list[str]]:
    """The arguments of each `surehook …` in code: those that begin a line or follow a prompt,
    a program that starts it, or a backtick."""
    return [shlex.split(found, comments=True) for found in _COMMAND.findall(text)]


def fault(arguments: list[str]) -> str | None:
    """What is wrong with a command, or None."""
    command: Any = typer.main.get_command(app)
    rest = list(arguments)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        if name not in command.commands:
            return f"no command {name!r} in surehook {' '.join(arguments)}"
        command = command.commands[name]
    wrong = _wrong_option(command, rest)
    return f"{wrong} in surehook {' '.join(arguments)}" if wrong else None


def _wrong_option(command: Any, rest: list[str]) -> str | None:
    flags = {"--help": True}
    for parameter in command.params:
        for option in (*parameter.opts, *parameter.secondary_opts):
            flags[option] = bool(getattr(parameter, "is_flag", False))
    waiting = iter(rest)
    for word in waiting:
        option, _, value = word.partition("=")
        if not option.startswith("-"):
            continue
        if option not in flags:
            return f"no option {option!r}"
        if not flags[option] and not value and next(waiting, None) is None:
            return f"{option} has no value"
    return None
