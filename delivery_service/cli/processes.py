"""Runs the parts of a process in one event loop, until a signal ends them."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import typer
import uvicorn

from delivery_service import migrations
from delivery_service.bootstrap import (
    Service,
    build,
    configure_logging,
    loop_factory,
    migrate_database,
)
from delivery_service.cli.failing import CommandError, one_line_errors
from delivery_service.cli.opening import load_settings
from delivery_service.settings import Settings
from delivery_service.worker.processes import run_processes

BACKLOG = 2048
SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True)
class Parts:
    """What one process runs. ``index`` counts the processes of one parent from 0; ``signals`` are
    those that stop it."""

    api: bool = False
    worker: bool = False
    migrate: bool = False
    index: int = 0
    signals: Sequence[signal.Signals] = SIGNALS


def serve(settings: Settings, parts: Parts) -> None:
    """Run the parts until SIGTERM or SIGINT; a second one does not wait.

    Raises `SurehookError` when they can't be started.
    """
    configure_logging(settings)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_run(settings, parts))


def serve_workers(settings: Settings, count: int) -> int:
    """Run ``count`` worker processes until SIGTERM or SIGINT; return the exit code."""
    configure_logging(settings)
    # What would end every child is said once, here.
    asyncio.run(_check(settings))
    return run_processes(count, serve_worker, settings.shutdown_grace)


def serve_worker(index: int) -> None:
    """Run one of several worker processes."""
    with one_line_errors():
        # Ctrl+C reaches the parent too, which passes it on as SIGTERM.
        serve(load_settings(), Parts(worker=True, index=index, signals=(signal.SIGTERM,)))


async def _check(settings: Settings) -> None:
    service = build(settings)
    try:
        await migrations.check_head(service.database)
    finally:
        await service.close()


async def _run(settings: Settings, parts: Parts) -> None:
    service = build(settings)
    try:
        if parts.migrate:
            await migrate_database(settings)
        await migrations.check_head(service.database)
        _collect_less_garbage()
        async with service.housekeeping(), service.metrics_listener(parts.index):
            await _work(service, parts)
    finally:
        await service.close()


def _collect_less_garbage() -> None:
    """Leave what has been loaded out of garbage collection, and collect new cycles less often.

    Every request makes thousands of objects that reference counting frees; with Python's default
    thresholds, looking for cycles among them took 18 % of a worker's time (bench drain: 349 µs a
    delivery, 285 µs so). Only for processes of our own: an application that embeds the service
    decides for itself.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


async def _work(service: Service, parts: Parts) -> None:
    """Run until a signal stops all parts, or one of them fails."""
    running: list[Coroutine[Any, Any, None]] = []
    stops: list[Callable[[], None]] = []
    listener = listen(service.settings.host, service.settings.port) if parts.api else None
    poke = None
    if parts.worker:
        worker = service.worker()
        poke = worker.poke
        running.append(worker.run())
        stops.append(worker.stop)
    if listener is not None:
        server = _server(service, poke)
        running.append(server.serve(sockets=[listener]))
        stops.append(server.stop)
        typer.echo(f"Listening on {_url(listener)}", err=True)
    with _stopped_by(parts.signals, stops):
        async with asyncio.TaskGroup() as group:
            for each in running:
                group.create_task(each)


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
def _stopped_by(
    numbers: Sequence[signal.Signals], stops: Sequence[Callable[[], None]]
) -> Iterator[None]:
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

    for number in numbers:
        loop.add_signal_handler(number, stop)
    try:
        yield
    except asyncio.CancelledError:
        raise CommandError(
            "stopped at once; the leases of what was in flight end by themselves"
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
