"""`surehook publish`: publish one event."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from delivery_service.cli.failing import CommandError
from delivery_service.cli.lengths import time_of
from delivery_service.cli.opening import in_database
from delivery_service.cli.output import AsJson, print_fields, print_json
from delivery_service.cli.through_api import check_by_catalogue
from delivery_service.settings import Settings
from delivery_service.store.database import Database
from delivery_service.store.waking import tell_workers
from sender.publish import Published
from sender.publish import publish as publish_event
from wire.rawjson import RawJson


def publish(
    tenant: Annotated[str, typer.Option(help="The tenant that it concerns.")],
    type_: Annotated[str, typer.Option("--type", help="Its type, such as `invoice.paid`.")],
    data: Annotated[
        str | None,
        typer.Option(help="JSON, sent exactly as given. `@file` reads a file, `-` standard input."),
    ] = None,
    body: Annotated[
        Path | None,
        typer.Option(help="File that is sent as it is, without an envelope, instead of --data."),
    ] = None,
    content_type: Annotated[str, typer.Option(help="Content type of --body.")] = "application/json",
    idempotency_key: Annotated[
        str | None, typer.Option(help="A repeat with the same key and content changes nothing.")
    ] = None,
    channels: Annotated[
        list[str] | None,
        typer.Option("--channel", help="Channel that it belongs to; repeatable."),
    ] = None,
    deliver_at: Annotated[
        str | None,
        typer.Option(help="When its first attempts are due, such as 2026-11-29T10:00:00Z."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Publish an event to every endpoint of the tenant that it matches.

    Data that does not fit its event type in the catalogue is refused or warned of, as over HTTP.
    """
    if (data is None) == (body is None):
        raise CommandError("give either --data or --body")
    given: dict[str, Any] = {
        "tenant": tenant,
        "type": type_,
        "idempotency_key": idempotency_key,
        "channels": channels or (),
        "deliver_at": deliver_at and time_of("deliver_at", deliver_at),
    }
    if body is not None:
        given |= {"body": _read(body), "content_type": content_type}
    else:
        given["data"] = RawJson(data_of(data or ""))

    published, warnings = in_database(
        lambda database, settings: _publish(database, settings, given)
    )
    shown: dict[str, Any] = {
        "id": published.event_id,
        "deliveries": list(published.delivery_ids),
        "duplicate": published.duplicate,
    }
    if as_json:
        print_json({**shown, "warnings": warnings} if warnings else shown)
    else:
        print_fields(shown.items())


async def _publish(
    database: Database, settings: Settings, given: dict[str, Any]
) -> tuple[Published, list[str]]:
    warnings = []
    if "data" in given:
        warnings = await check_by_catalogue(database, given["type"], given["data"])
    limit = settings.max_body_bytes
    published = await database.write(publish_event, **given, max_body_bytes=limit)
    await tell_workers(database, settings)
    return published, warnings


def data_of(text: str) -> str | bytes:
    """Return the JSON that is meant: the text itself, the file after `@`, `-` standard input."""
    if text == "-":
        return sys.stdin.buffer.read()
    return _read(Path(text[1:])) if text.startswith("@") else text


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}") from None
