"""What the API refuses, the command line refuses too, for the same reason: by the API's own rules.

FastAPI comes with them, which commands start faster without; so it is imported only where a rule
is applied.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from delivery_service.cli.failing import CommandError
from delivery_service.cli.output import plain
from delivery_service.store import event_types
from delivery_service.store.database import Database
from wire.envelope import check_event_type
from wire.rawjson import RawJson


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
    """Turn the API's problems into `CommandError`; ``what``: the id that the command was given."""
    from delivery_service.api.problems import Problem  # noqa: PLC0415 - see above

    try:
        yield
    except Problem as problem:
        # Members of a request are options here: their names are enough to find them.
        faults = [
            f"{error['pointer'].removeprefix('#/')}: {error['detail']}" for error in problem.errors
        ]
        said = "; ".join(faults) or problem.detail
        raise CommandError(f"{what}: {said}" if what else said) from None
