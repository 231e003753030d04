"""`surehook up`, `api` and `worker`: the processes of the service."""

from __future__ import annotations

from typing import Annotated

import typer

from delivery_service.cli.opening import load_settings
from delivery_service.settings import Settings

Host = Annotated[str | None, typer.Option(help="Address to listen on. Default: setting `host`.")]
Port = Annotated[
    int | None,
    typer.Option(min=0, max=65535, help="Port to listen on, 0 for any. Default: setting `port`."),
]


def up(host: Host = None, port: Port = None) -> None:
    """Run everything in one process: API and worker, on SQLite unless set otherwise.

    The database is migrated first.
    """
    _serve(load_settings(host=host, port=port), api=True, worker=True, migrate=True)


def api(host: Host = None, port: Port = None) -> None:
    """Run the API."""
    _serve(load_settings(host=host, port=port), api=True)


def worker(
    processes: Annotated[
        int, typer.Option(min=1, max=64, help="Processes; one uses at most one CPU core.")
    ] = 1,
) -> None:
    """Run workers. A process that crashes is started again."""
    settings = load_settings()
    if processes == 1:
        _serve(settings, worker=True)
        return
    from delivery_service.cli.processes import serve_workers  # noqa: PLC0415

    raise typer.Exit(serve_workers(settings, processes))


def _serve(
    settings: Settings, *, api: bool = False, worker: bool = False, migrate: bool = False
) -> None:
    # The other commands start twice as fast without what only these need.
    from delivery_service.cli.processes import Parts, serve  # noqa: PLC0415

    serve(settings, Parts(api=api, worker=worker, migrate=migrate))
