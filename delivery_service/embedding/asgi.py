"""The service as parts of an ASGI application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

import structlog

from delivery_service import migrations
from delivery_service.bootstrap import Service, build, configure_logging, migrate_database
from delivery_service.settings import Settings
from delivery_service.worker.loop import Worker

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.types import ASGIApp

LONGEST_PAUSE = 30.0
"""Seconds before a worker that failed is made anew; begins with one and doubles."""

log = structlog.get_logger(__name__)


class Embedded:
    """The service as parts of an ASGI application.

    ``worker``: whether this process sends as well, rather than only publish and answer the API.
    ``migrate``: whether `lifespan` creates and upgrades the tables first; of several processes
    that do so at once, one does it and the others wait.
    """

    def __init__(self, settings: Settings, *, worker: bool = True, migrate: bool = False) -> None:
        """Raises `SettingsError` when the encryption keys are missing or unusable."""
        self._settings = settings
        self._has_worker = worker
        self._migrate = migrate
        self._service = build(settings)
        self._worker: Worker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @cached_property
    def app(self) -> ASGIApp:
        """The API, to be mounted. It answers while `lifespan` lasts."""
        return self._service.api(on_publish=self._poke_worker)

    def poke(self) -> None:
        """Say that a transaction of yours that published has been committed: its deliveries are
        sent at once instead of within `poll_interval`. Callable from any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has just been closed
                self._loop.call_soon_threadsafe(self._poke_worker)

    def metrics(self) -> tuple[bytes, str]:
        """Return this process's metrics in Prometheus' text format, and its content type."""
        return self._service.metrics.render()

    @asynccontextmanager
    async def lifespan(self, _app: object = None) -> AsyncIterator[None]:
        """Run database, worker and housekeeping; at the end the worker finishes what is in flight
        within `shutdown_grace`. It can be used again afterwards.

        Raises `MigrationError` when the database is not at head, and the driver's errors when it
        can't be reached.
        """
        if not structlog.is_configured():  # otherwise the application has said what it wants
            configure_logging(self._settings)
        service = self._service
        try:
            if self._migrate:
                await migrate_database(self._settings)
            await migrations.check_head(service.database)
            self._loop = asyncio.get_running_loop()
            async with service.housekeeping(), self._working(service):
                yield
        finally:
            self._loop = None
            await service.close()

    @asynccontextmanager
    async def _working(self, service: Service) -> AsyncIterator[None]:
        if not self._has_worker:
            yield
            return
        stopping = asyncio.Event()
        task = asyncio.create_task(self._work(service, stopping))
        try:
            await asyncio.sleep(0)  # it runs now
            yield
        finally:
            stopping.set()
            if self._worker is not None:
                self._worker.stop()
            await task

    async def _work(self, service: Service, stopping: asyncio.Event) -> None:
        """Keep a worker running. A process of the service would end and be started again when
        its worker fails; an application must not end for that."""
        pause = 1.0
        while not stopping.is_set():
            self._worker = service.worker()
            try:
                await self._worker.run()
            except Exception:
                log.exception("worker_failed", again_in=pause)
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await stopping.wait()
                pause = min(2 * pause, LONGEST_PAUSE)
            finally:
                self._worker = None

    def _poke_worker(self) -> None:
        if self._worker is not None:
            self._worker.poke()
        elif self._service.announcer is not None:
            self._service.announcer()


def mount(
    app: Starlette, path: str, settings: Settings, *, worker: bool = True, migrate: bool = False
) -> Embedded:
    """Mount the API at ``path`` of a FastAPI or Starlette application, and run the service from
    its lifespan, around whatever lifespan it has. The arguments are those of `Embedded`.

    The API's own paths follow: ``/webhooks/v1/events``, ``/webhooks/.well-known/webhooks``.
    """
    embedded = Embedded(settings, worker=worker, migrate=migrate)
    app.mount(path, embedded.app)
    inner: Callable[[Any], Any] = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[Any]:
        async with embedded.lifespan(), inner(app) as state:
            yield state

    app.router.lifespan_context = lifespan
    return embedded
