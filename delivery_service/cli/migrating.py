"""`surehook migrate`: create and upgrade the tables."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from delivery_service.cli.opening import load_settings
from delivery_service.settings import Settings
from delivery_service.store.database import open_database


def migrate(
    revision: Annotated[str, typer.Option(help="Where to: a revision, `+1`, or `head`.")] = "head",
    downgrade: Annotated[
        str | None,
        typer.Option(
            metavar="REVISION",
            help="Go back to a revision, `-1`, or `base`: that drops tables with all their rows.",
        ),
    ] = None,
    sql: Annotated[
        bool, typer.Option("--sql", help="Print the SQL for an empty database; change nothing.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only say whether the database is up to date.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask before a downgrade.")] = False,
) -> None:
    """Create the tables, or upgrade them to what this version needs.

    Of several processes that migrate at once one does it and the others wait.
    """
    from delivery_service import migrations  # noqa: PLC0415 - only this command needs it

    settings = load_settings()
    if sql:
        dialect = settings.async_database_url.get_backend_name()
        typer.echo(migrations.as_sql(dialect, settings.database_schema, revision))
        return
    if downgrade is not None and not yes:
        typer.confirm("A downgrade can drop tables and all that is in them. Go on?", abort=True)
    asyncio.run(_migrate(settings, revision, downgrade, check))


async def _migrate(settings: Settings, revision: str, downgrade: str | None, check: bool) -> None:
    from delivery_service import migrations  # noqa: PLC0415 - only this command needs it

    database = open_database(settings, time_limit=False)
    try:
        if check:
            await migrations.check_head(database)
        elif downgrade is not None:
            await migrations.downgrade(database, downgrade)
        else:
            await migrations.upgrade(database, revision)
        found = await migrations.current(database)
    finally:
        await database.close()
    newest = " (head)" if found == migrations.head() else ""
    typer.echo(f"The database is at revision {found or migrations.BASE}{newest}.")
