"""`surehook secrets`: what is encrypted at rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from sqlalchemy import Column

from delivery_service.cli.failing import CommandError
from delivery_service.cli.opening import in_database
from delivery_service.cli.output import AsJson, print_json, progress_bar
from delivery_service.sealing import Sealer, sealer_for
from delivery_service.settings import Settings, SettingsError
from delivery_service.store import sealed
from delivery_service.store.database import Database

app = typer.Typer(help="Secrets at rest: their encryption.", no_args_is_help=True)

BATCH = 200
"""Values re-encrypted in one transaction, some 20 ms: workers that need one of these rows wait
so long at most."""

PASSES = 10
"""Looks at everything, until one finds nothing that was changed meanwhile under an older key."""


@dataclass
class Rotation:
    """What was done. ``unreadable`` names values that no key opens, ``passed_over`` counts those
    that others held at each look."""

    total: int = 0
    rotated: int = 0
    passed_over: int = 0
    unreadable: set[str] = field(default_factory=set)


@app.command("rotate-encryption")
def rotate_encryption(
    check: Annotated[
        bool, typer.Option("--check", help="Only count what is not under the first key.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Encrypt everything that is sealed (secrets, custom headers, TLS material) under the first
    of `encryption_keys`.

    Safe beside running workers and API processes, as long as each of them has the new key among
    its `encryption_keys`. May be interrupted and run again at any time: what is done stays done.
    Says when the older keys can be removed. Exit status 1 while something is left to do.
    """

    async def work(database: Database, settings: Settings) -> tuple[Rotation, int]:
        sealer = sealer_for(settings)
        keys = len(settings.encryption_keys) or 1
        total = await database.read(sealed.count)
        with progress_bar("Looking" if check else "Encrypting", total) as advance:
            return await _rotate(database, sealer, advance, check=check), keys

    rotation, keys = in_database(work)
    left = rotation.passed_over + len(rotation.unreadable)
    shown = {
        "values": rotation.total,
        "rotated": rotation.rotated,
        "left": left,
        "unreadable": sorted(rotation.unreadable),
        "keys": keys,
        "older_keys_removable": keys > 1 and not left,
    }
    if as_json:
        print_json(shown)
    else:
        _tell(rotation, keys, check=check)
    if left:
        raise typer.Exit(1)


async def _rotate(
    database: Database, sealer: Sealer, advance: Callable[[int], None], *, check: bool
) -> Rotation:
    rotation = Rotation()
    for number in range(1 if check else PASSES):
        rotation.total = rotation.passed_over = 0
        rotation.unreadable.clear()
        found = 0
        for column in sealed.columns():
            found += await _column(database, column, sealer, rotation, advance, check=check)
        if not found:
            break
        if number == 0:
            advance = _silently  # the looks that follow only make sure
    return rotation


def _silently(_count: int) -> None:
    pass


async def _column(
    database: Database,
    column: Column[Any],
    sealer: Sealer,
    rotation: Rotation,
    advance: Callable[[int], None],
    *,
    check: bool,
) -> int:
    """Go once through a column; return how many readable values were not under the first key."""
    at, found = "", 0
    while rows := await database.read(sealed.after, column, at, BATCH):
        at = rows[-1][0]
        stale = [id_ for id_, value in rows if not sealer.is_current(value)]
        old = _readable(rows, stale, column, sealer, rotation)
        done = 0
        if old and not check:
            done = await database.write(sealed.replace, column, old, _reseal(sealer))
        found += len(old)
        rotation.total += len(rows)
        rotation.rotated += done
        rotation.passed_over += len(old) - done
        advance(len(rows))
    return found


def _readable(
    rows: list[tuple[str, bytes]],
    stale: list[str],
    column: Column[Any],
    sealer: Sealer,
    rotation: Rotation,
) -> list[str]:
    values = dict(rows)
    readable = []
    for id_ in stale:
        try:
            sealer.open(values[id_])
        except SettingsError:
            rotation.unreadable.add(f"{column.table.name}.{column.name} {id_}")
        else:
            readable.append(id_)
    return readable


def _reseal(sealer: Sealer) -> Callable[[bytes], bytes | None]:
    def reseal(value: bytes) -> bytes | None:
        # It may have been changed since it was looked at.
        try:
            return None if sealer.is_current(value) else sealer.reseal(value)
        except SettingsError:
            return None

    return reseal


def _tell(rotation: Rotation, keys: int, *, check: bool) -> None:
    if rotation.unreadable:
        for name in sorted(rotation.unreadable):
            typer.echo(f"No key opens {name}.", err=True)
        raise CommandError(
            f"encryption_keys: {len(rotation.unreadable)} of {rotation.total} values can't be"
            " decrypted; put the key that they were encrypted with back"
        )
    if rotation.passed_over:
        what = "are not under the first key yet" if check else "were held by others; run it again"
        typer.echo(f"{rotation.passed_over:,} of {rotation.total:,} values {what}.")
        return
    done = "" if check else f" ({rotation.rotated:,} encrypted now)"
    typer.echo(f"All {rotation.total:,} values are under the first key{done}.")
    if keys > 1:
        typer.echo(
            "The older keys can be removed from encryption_keys, once every process runs with the"
            " new key in first place. Keep them as long as you keep backups from before."
        )
