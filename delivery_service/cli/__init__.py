"""The command line: `surehook --help` lists the commands. One module for each group of them."""

from __future__ import annotations

from typing import Annotated

import typer

from delivery_service.cli import (
    bulk,
    deliveries,
    endpoint_care,
    endpoints,
    events,
    keys,
    migrating,
    operations,
    secrets,
    serving,
)
from delivery_service.cli.config import config
from delivery_service.cli.demo import demo
from delivery_service.cli.doctor import doctor
from delivery_service.cli.failing import Commands
from delivery_service.cli.listening import listen
from delivery_service.cli.status import status
from wire.version import VERSION

app = typer.Typer(
    cls=Commands,
    name="surehook",
    help="Send webhooks that arrive: signed, retried on a schedule, inspectable.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"surehook {VERSION}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Settings come from SUREHOOK_… variables and from surehook.toml."""


for command in (
    serving.up,
    serving.api,
    serving.worker,
    migrating.migrate,
    events.publish,
    bulk.recover,
    bulk.replay,
    bulk.cancel,
    bulk.broadcast,
    demo,
    status,
    doctor,
    config,
    listen,
):
    app.command()(command)
for name, care in {
    "show": endpoint_care.show,
    "enable": endpoint_care.enable,
    "verify": endpoint_care.verify,
    "disable": endpoint_care.disable,
    "rotate": endpoint_care.rotate,
    "test": endpoint_care.send_test,
}.items():
    endpoints.app.command(name)(care)
app.add_typer(deliveries.app, name="deliveries")
app.add_typer(endpoints.app, name="endpoint")
app.add_typer(operations.app, name="operations")
app.add_typer(keys.app, name="keys")
app.add_typer(secrets.app, name="secrets")


def main() -> None:
    """Run the command that the process was started with, and exit."""
    app(prog_name="surehook")
