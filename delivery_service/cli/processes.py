"""Runs API and worker in one event loop, until a signal ends them."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
import uvicorn

from delivery_service import migrations
from delivery_service.bootstrap import Service, build, configure_logging
from delivery_service.cli.failing import CommandError
from delivery_service.settings import Settings
from delivery_service.store.database import open_database

BACKLOG = 2048


def serve(settings: Settings, *, api: bool, worker: bool, migrate: bool) -> None:
    """Run the parts that are asked for until SIGTERM or SIGINT; a second one does not wait.

    Raises `SurehookError` when they can't be started.
    """
    configure_logging(settings)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_run(settings, api=api, worker=worker, migrate=migrate))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop  # noqa: PLC0415 - it does not exist on Windows

    return uvloop.new_event_loop


async def _run(settings: Settings, *, api: bool, worker: bool, migrate: bool) -> None:
    service = build(settings)
    try:
        if migrate:
            await _migrate(settings)
        await migrations.check_head(service.database)
        await _work(service, api=api, worker=worker)
    finally:
        await service.close()


async def _migrate(settings: Settings) -> None:
    # Without the service's limit on the time of a statement.
    database = open_database(settings, command_timeout=None)
    try:
        await migrations.upgrade(database)
    finally:
        await database.close()


async def _work(service: Service, *, api: bool, worker: bool) -> None:
    """Run the parts until a signal stops them, or one of them fails."""
    parts: list[Any] = []
    stops: list[Callable[[], None]] = []
    poke = None
    if worker:
        working = service.worker()
        poke = working.poke
        parts.append(working.run)
        stops.append(working.stop)
    if api:
        listener = listen(service.settings.host, service.settings.port)
        server = _server(service, poke)
        parts.append(lambda: server.serve(sockets=[listener]))
        stops.append(server.stop)
        typer.echo(f"Listening on {_url(listener)}", err=True)
    with _stopped_by_signals(stops):
        async with asyncio.TaskGroup() as group:
            for part in parts:
                group.create_task(part())


class _Server(uvicorn.Server):
    """Leaves signals to whoever runs it beside other parts."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def stop(self) -> None:
        self.should_exit = True


def _server(service: Service, on_publish: Callable[[], None] | None) -> _Server:
    return _Server(
        uvicorn.Config(
            service.api(on_publish=on_publish),
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=int(service.settings.shutdown_grace.total_seconds()),
        )
    )


@contextmanager
def _stopped_by_signals(stops: list[Callable[[], None]]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    stopping = False

    def stop() -> None:
        nonlocal stopping
        if stopping and task is not None:
            task.cancel()  # asked twice: don't wait for what is in flight
        stopping = True
        for each in stops:
            each()

    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, stop)
    try:
        yield
    except asyncio.CancelledError:
        raise CommandError(
            "stopped at once; leases of what was in flight end by themselves"
        ) from None
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket. Raises `CommandError`, which names the settings to change."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise CommandError(
            f"host, port: can't listen on {host} port {port}: {error.strerror or error}"
        ) from None


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
