"""`surehook demo`: the main job from end to end, on this machine, in a few seconds."""

from __future__ import annotations

import signal
from typing import Annotated

import typer


def demo(
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave everything running until Ctrl+C.")
    ] = False,
) -> None:
    """Show the main job: publish in a transaction, deliver signed, retry, one effect each.

    Runs the service on SQLite in a temporary folder, and a receiver that answers 500, then hangs,
    then accepts. Exits with 0 only if everything happened as it must.
    """
    # The other commands start faster without what only this one needs.
    from delivery_service.cli.demo.story import play  # noqa: PLC0415

    # Ended politely in every case, so that nothing that was started lives on.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not play(keep=keep):
        raise typer.Exit(1)
