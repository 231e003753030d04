"""`surehook doctor`: everything that is worth a look when something is wrong."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Annotated

import typer
from rich.text import Text

from delivery_service.cli.doctor.findings import Finding, Level, failure, ok
from delivery_service.cli.failing import explained
from delivery_service.cli.opening import check_sqlite_file, load_settings
from delivery_service.cli.output import AsJson, console, plain, print_json
from delivery_service.settings import Settings
from delivery_service.store.database import Database, open_database
from wire.errors import SurehookError

STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.FAILURE: "bold red"}


def doctor(
    endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="ID|URL",
            help="Look at an endpoint (ep_…) or a URL instead: guard, DNS, TCP, TLS, signature.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look for what is wrong: settings, database, clock, names, workers, the oldest due delivery.

    Nothing is changed and nothing is sent. Exit status 1 when there is a failure; warnings don't
    count.
    """
    found: list[Finding] = []

    async def look() -> None:
        async for finding in _findings(endpoint):
            found.append(finding)
            if not as_json:
                _print(finding)

    asyncio.run(look())
    levels = Counter(finding.level for finding in found)
    if as_json:
        print_json(
            {
                "failures": levels[Level.FAILURE],
                "warnings": levels[Level.WARNING],
                "findings": [
                    {"about": each.about, "level": each.level.value, "text": each.text}
                    for each in found
                ],
            }
        )
    else:
        typer.echo(f"\n{levels[Level.FAILURE]} failures, {levels[Level.WARNING]} warnings.")
    if levels[Level.FAILURE]:
        raise typer.Exit(1)


def _print(finding: Finding) -> None:
    line = Text.assemble(
        (f"{finding.level.value:<8}", STYLES[finding.level]), f" {finding.about}: "
    )
    console().print(line.append(plain(finding.text)), soft_wrap=True)


async def _findings(endpoint: str | None) -> AsyncIterator[Finding]:
    try:
        settings = load_settings()
    except SurehookError as error:
        yield failure("settings", str(error))
        return
    if endpoint is None:
        async for finding in _everything(settings):
            yield finding
    elif "://" in endpoint:
        async for finding in _url(endpoint, settings):
            yield finding
    else:
        async for finding in _endpoint(endpoint, settings):
            yield finding


async def _everything(settings: Settings) -> AsyncIterator[Finding]:
    from delivery_service.cli.doctor.configuration import check_settings  # noqa: PLC0415

    for finding in check_settings(settings):
        yield finding
    try:
        check_sqlite_file(settings)
    except SurehookError as error:
        yield failure("database", str(error))
        return
    database = open_database(settings)
    try:
        async for finding in _in_database(database, settings):
            yield finding
    except Exception as error:
        message = explained(error)
        if message is None:
            raise
        yield failure("database", message)
    finally:
        await database.close()


async def _in_database(database: Database, settings: Settings) -> AsyncIterator[Finding]:
    from delivery_service.cli.doctor.database import check_database  # noqa: PLC0415
    from delivery_service.cli.doctor.flow import (  # noqa: PLC0415
        check_flow,
        check_names,
        newest_hosts,
    )
    from delivery_service.migrations import check_head, head  # noqa: PLC0415

    for finding in await database.read(check_database, settings):
        yield finding
    try:
        await check_head(database)
    except SurehookError as error:
        yield failure("revision", str(error))
        return
    yield ok("revision", f"{head()} (head)")
    for finding in await database.read(check_flow, settings):
        yield finding
    for finding in await check_names(await database.read(newest_hosts, settings)):
        yield finding


async def _url(url: str, settings: Settings) -> AsyncIterator[Finding]:
    from delivery_service.cli.doctor.reaching import check_reach  # noqa: PLC0415
    from delivery_service.net.rules import guard_policy  # noqa: PLC0415

    async for finding in check_reach(url, guard_policy(settings)):
        yield finding


async def _endpoint(endpoint_id: str, settings: Settings) -> AsyncIterator[Finding]:
    from delivery_service.bootstrap import build  # noqa: PLC0415
    from delivery_service.cli.doctor.endpoint import check_endpoint  # noqa: PLC0415
    from delivery_service.migrations import check_head  # noqa: PLC0415

    check_sqlite_file(settings)
    service = build(settings)
    try:
        await check_head(service.database)
        async for finding in check_endpoint(service, endpoint_id):
            yield finding
    finally:
        await service.close()
