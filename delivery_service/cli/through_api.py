"""What the API refuses, the command line refuses too, for the same reason: by the API's own code.

FastAPI comes with it, which commands start faster without; so it is imported only where it is
needed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import typer
from pydantic import ValidationError

from delivery_service.cli.auditing import actor
from delivery_service.cli.failing import CommandError
from delivery_service.cli.opening import faults_of, in_service
from delivery_service.cli.output import plain
from delivery_service.store import event_types
from delivery_service.store.database import Database
from delivery_service.store.keys import Scope
from wire.envelope import check_event_type
from wire.rawjson import RawJson

if TYPE_CHECKING:
    from delivery_service.api.callers import Caller
    from delivery_service.api.context import Context
    from delivery_service.bootstrap import Service

T = TypeVar("T")


def in_api(work: Callable[[Context, Caller], Awaitable[T]], what: str | None = None) -> T:
    """Run ``work(context, caller)``, which calls operations of the API, in the name of whoever is
    at the command line; ``what`` as in `refused_like_the_api`."""
    from delivery_service.api.callers import Caller  # noqa: PLC0415 - see above

    async def run(service: Service) -> T:
        with refused_like_the_api(what):
            return await work(service.context(), Caller(actor(), Scope.ADMIN))

    return in_service(run)


async def check_by_catalogue(database: Database, event_type: str, data: RawJson) -> list[str]:
    """Return warnings about data that does not fit its type in the catalogue, after showing them.

    Raises `CommandError` for data that the API would refuse.
    """
    check_event_type(event_type)
    rows = await database.read(event_types.validated, event_type)
    if not rows:
        return []
    from delivery_service.api.catalogue import Rule  # noqa: PLC0415 - see above

    with refused_like_the_api():
        warnings = Rule.of(rows[0]).check(data, "#/data")
    for warning in warnings:
        typer.echo(f"surehook: {plain(warning)}", err=True)
    return warnings


@contextmanager
def refused_like_the_api(what: str | None = None) -> Iterator[None]:
    """Turn what the API would answer with a problem into `CommandError`.

    ``what``: the id of what the command is about, for the message.
    """
    from delivery_service.api.problems import Problem  # noqa: PLC0415 - see above

    try:
        yield
    except ValidationError as error:
        raise CommandError(faults_of(error)) from None
    except Problem as problem:
        # The members of a request are options here: their names are enough to find them.
        faults = [
            f"{error['pointer'].removeprefix('#/')}: {error['detail']}" for error in problem.errors
        ]
        said = "; ".join(faults) or problem.detail
        raise CommandError(f"{what}: {said}" if what else said) from None
