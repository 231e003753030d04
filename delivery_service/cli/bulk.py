"""`surehook recover`, `replay`, `cancel` and `broadcast`: work on many deliveries at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer
from sqlalchemy import Connection

from delivery_service.cli.events import data_of
from delivery_service.cli.failing import CommandError
from delivery_service.cli.lengths import moment_of
from delivery_service.cli.opening import in_database
from delivery_service.cli.operations import get_operation, note_operation, print_operation, watch
from delivery_service.cli.output import AsJson
from delivery_service.cli.through_api import check_by_catalogue
from delivery_service.policy.outcome import OutcomeKind
from delivery_service.settings import Settings
from delivery_service.store import bulk, narrowing, operations, tenants
from delivery_service.store.bulk import Filter
from delivery_service.store.database import Database
from sender.publish import check_tenant
from wire.envelope import check_event_size, check_event_type
from wire.errors import SurehookError
from wire.ids import ENDPOINT, parse_id
from wire.rawjson import RawJson

Since = Annotated[
    str,
    typer.Option(help="Deliveries created since: a length of time such as `2h`, or RFC 3339."),
]
Until = Annotated[
    str | None, typer.Option(help="Deliveries created before: as --since. Left out, before now.")
]
Tenant = Annotated[str | None, typer.Option(help="Only this tenant's.")]
Endpoint = Annotated[str | None, typer.Option(help="Only to this endpoint (ep_…).")]
Type = Annotated[str | None, typer.Option("--type", help="Only this event type.")]
IdempotencyKey = Annotated[
    str | None,
    typer.Option(
        help="A repeat with the same key and options shows the first operation instead of starting"
        " another; give times as RFC 3339."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count, and change nothing.")]
Wait = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Show progress until the end, or return at once.")
]
Undelivered = Literal["dead", "cancelled", "skipped"]
"""The states that can be recovered from."""
IN_STATE = "Only those in this state; cancelled ones only if it, or their reason, is asked for."
Reason = Annotated[
    narrowing.Reason | None, typer.Option(help="Only those that ended for this reason.")
]
LastOutcome = Annotated[
    OutcomeKind | None, typer.Option(help="Only those whose latest attempt was of this `kind`.")
]


@dataclass(frozen=True, slots=True)
class _Running:
    """How an operation is run and shown."""

    key: str | None
    dry_run: bool
    wait: bool
    as_json: bool


def recover(
    since: Since,
    until: Until = None,
    tenant: Tenant = None,
    endpoint: Endpoint = None,
    type_: Type = None,
    status: Annotated[Undelivered | None, typer.Option(help=IN_STATE)] = None,
    reason: Reason = None,
    last_outcome: LastOutcome = None,
    idempotency_key: IdempotencyKey = None,
    dry_run: DryRun = False,
    wait: Wait = True,
    as_json: AsJson = False,
) -> None:
    """Redeliver everything that was not delivered: same ids, fresh schedules.

    Works in the background, in batches: an interrupted one is gone on with by any running process.
    """
    where = _filter(
        since,
        until,
        tenant=tenant,
        endpoint=endpoint,
        event_type=type_,
        status=status,
        reason=reason,
        last_outcome=last_outcome,
    )
    _on_deliveries(bulk.RECOVER, where, _Running(idempotency_key, dry_run, wait, as_json))


def replay(
    since: Since,
    until: Until = None,
    tenant: Tenant = None,
    endpoint: Endpoint = None,
    type_: Type = None,
    status: Annotated[bulk.Ended | None, typer.Option(help=IN_STATE)] = None,
    reason: Reason = None,
    last_outcome: LastOutcome = None,
    idempotency_key: IdempotencyKey = None,
    dry_run: DryRun = False,
    wait: Wait = True,
    as_json: AsJson = False,
) -> None:
    """Redeliver everything that has ended, also what was delivered.

    Receivers that remember the ids of deliveries ignore those that they have handled.
    """
    where = _filter(
        since,
        until,
        tenant=tenant,
        endpoint=endpoint,
        event_type=type_,
        status=status,
        reason=reason,
        last_outcome=last_outcome,
    )
    _on_deliveries(bulk.REPLAY, where, _Running(idempotency_key, dry_run, wait, as_json))


def cancel(
    since: Since,
    until: Until = None,
    tenant: Tenant = None,
    endpoint: Endpoint = None,
    type_: Type = None,
    last_outcome: LastOutcome = None,
    idempotency_key: IdempotencyKey = None,
    dry_run: DryRun = False,
    wait: Wait = True,
    as_json: AsJson = False,
) -> None:
    """Cancel everything that is pending: no attempt starts any more; one in flight is let finish.

    `recover --status cancelled` takes it back. One by one: `deliveries cancel`.
    """
    where = _filter(
        since,
        until,
        tenant=tenant,
        endpoint=endpoint,
        event_type=type_,
        last_outcome=last_outcome,
    )
    _on_deliveries(bulk.CANCEL, where, _Running(idempotency_key, dry_run, wait, as_json))


def broadcast(
    type_: Annotated[str, typer.Option("--type", help="Its type, such as `terms.changed`.")],
    data: Annotated[
        str,
        typer.Option(help="JSON, sent exactly as given. `@file` reads a file, `-` standard input."),
    ],
    idempotency_key: IdempotencyKey = None,
    dry_run: DryRun = False,
    wait: Wait = True,
    as_json: AsJson = False,
) -> None:
    """Publish an event for every tenant, once each: in batches, as `recover` works.

    A tenant that none of its endpoints matches has the event without a delivery.
    """
    content = RawJson(data_of(data))

    async def count(database: Database, settings: Settings) -> tuple[int, Counter[str]]:
        await _check_event(database, settings, type_, content)
        return await tenants.count_known(database.read), Counter()

    async def add(database: Database, settings: Settings) -> dict[str, Any]:
        await _check_event(database, settings, type_, content)
        where = {"type": type_}
        return await database.write(_add, bulk.BROADCAST, where, content.content, idempotency_key)

    _carry_out(bulk.BROADCAST, count, add, _Running(idempotency_key, dry_run, wait, as_json))


async def _check_event(
    database: Database, settings: Settings, event_type: str, data: RawJson
) -> None:
    """Refuse what could not be published, or is not as the catalogue has it: for all tenants."""
    check_event_size(event_type, data, settings.max_body_bytes)
    await check_by_catalogue(database, event_type, data)


def _on_deliveries(kind: bulk.Kind, where: Filter, running: _Running) -> None:
    async def count(database: Database, settings: Settings) -> tuple[int, Counter[str]]:
        return await bulk.count(database.read, kind, where, settings.replay_window)

    async def add(database: Database, _settings: Settings) -> dict[str, Any]:
        return await database.write(_add, kind, where.to_json(), None, running.key)

    _carry_out(kind, count, add, running)


Count = Callable[[Database, Settings], Awaitable[tuple[int, Counter[str]]]]
Add = Callable[[Database, Settings], Awaitable[dict[str, Any]]]


def _carry_out(kind: bulk.Kind, count: Count, add: Add, running: _Running) -> None:
    async def count_only(database: Database, settings: Settings) -> dict[str, Any]:
        possible, passed_over = await count(database, settings)
        return {
            "kind": kind,
            "matched": possible + passed_over.total(),
            "possible": possible,
            "passed_over": dict(passed_over),
        }

    async def start(database: Database, settings: Settings) -> dict[str, Any]:
        row = await add(database, settings)
        if not running.wait:
            return row
        async with _helping(database, settings, row["id"]):
            return await watch(database, row, is_quiet=running.as_json)

    done = in_database(count_only if running.dry_run else start)
    print_operation(done, as_json=running.as_json)
    if done.get("status") in (operations.FAILED, operations.CANCELLED):
        raise typer.Exit(1)


def _add(
    connection: Connection,
    kind: bulk.Kind,
    where: dict[str, Any],
    data: bytes | None,
    key: str | None,
) -> dict[str, Any]:
    added = operations.add(connection, kind, where, data, idempotency_key=key)
    if not added.is_same:
        raise CommandError(f"idempotency-key: {key!r} belongs to {added.id}, which differs")
    if added.is_new:
        note_operation(connection, "operation.created", added.id, where)
    return get_operation(connection, added.id)


class _helping:  # noqa: N801 - used like a function
    """Carries out the operation in this process, unless a running one is quicker."""

    def __init__(self, database: Database, settings: Settings, operation_id: str) -> None:
        # Progress is on standard error, where log lines would go.
        # The other commands start faster without what only this needs.
        from delivery_service.bootstrap import (  # noqa: PLC0415
            configure_logging,
            operation_runner,
        )

        configure_logging(settings.model_copy(update={"log_level": "error"}))
        self._runner = operation_runner(settings, database, only=operation_id)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._runner.run())

    async def __aexit__(self, *_exception: object) -> None:
        assert self._task is not None  # noqa: S101 - set on entering
        self._runner.stop()
        with suppress(asyncio.CancelledError):
            await self._task


_CHECKS: dict[str, Callable[[str], str | None]] = {
    "tenant": check_tenant,
    "endpoint": lambda value: parse_id(value, ENDPOINT),
    "event_type": check_event_type,
}


def _filter(since: str, until: str | None, **equal: str | None) -> Filter:
    start = moment_of("since", since)
    assert start is not None  # noqa: S101 - it is required
    # A mistyped one would be matched by nothing, which looks like there being nothing to do.
    for name, check in _CHECKS.items():
        if (value := equal[name]) is not None:
            try:
                check(value)
            except SurehookError as error:
                raise CommandError(f"{name}: {error}") from None
    where = Filter(since=start, until=moment_of("until", until), **equal)
    if where.until is not None and where.until <= where.since:
        raise CommandError("until must be later than since")
    return where
