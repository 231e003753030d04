"""Options for what deliveries can be selected by, beside what they belong to."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import datetime
from functools import wraps
from typing import Any, get_args

import typer

from delivery_service.cli.lengths import moment_of
from delivery_service.store.narrowing import MEMBERS, Member, Narrow


def with_narrowing(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each member of `Narrow`; it gets them as ``narrow``,
    a parameter that can only be named, and they stand in its place."""

    @wraps(command)
    def with_options(**given: Any) -> None:
        narrow = Narrow(**{name: _read(name, given.pop(name)) for name in MEMBERS})
        command(**given, narrow=narrow)

    signature = inspect.signature(command, eval_str=True)
    options = [_parameter(name, member) for name, member in MEMBERS.items()]
    parameters = [
        each
        for given in signature.parameters.values()
        for each in (options if given.name == "narrow" else [given])
    ]
    # Typer reads the options from the signature.
    vars(with_options)["__signature__"] = signature.replace(parameters=parameters)
    return with_options


def _parameter(name: str, member: Member) -> inspect.Parameter:
    kind, text, least = member.type, member.meaning, None
    if _is(datetime, member):
        kind = str | None
        text = f"{text.removesuffix('.')}: `2h` ago, or `2026-11-29T10:00:00Z`."
    elif _is(int, member):
        least = 0
    option = typer.Option(None, help=text, min=least)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=kind)


def _read(name: str, value: Any) -> Any:
    return moment_of(name.replace("_", "-"), value) if _is(datetime, MEMBERS[name]) else value


def _is(type_: type, member: Member) -> bool:
    return type_ in get_args(member.type)
