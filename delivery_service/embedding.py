"""The service inside another application: mounted in an ASGI one, or a worker thread in any.

FastAPI and Starlette run it in their own event loop, from their lifespan::

    app = FastAPI()
    mount(app, "/webhooks", Settings())

Flask, Django and everything else run a worker in a thread with an event loop of its own::

    webhooks = WorkerThread(Settings())
    webhooks.start()          # in each process that serves, after it was forked

Nothing is connected or started before that, so an application may be imported, and forked,
freely. Neither listens on a port: `metrics` gives what a page of the application can show.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread  # noqa: F401 - what it does at exit must come after what we do
import os
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

import structlog

from delivery_service import migrations
from delivery_service.bootstrap import (
    Service,
    build,
    configure_logging,
    loop_factory,
    migrate_database,
)
from delivery_service.settings import Settings
from delivery_service.worker.loop import Worker
from wire.errors import SurehookError

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.types import ASGIApp

__all__ = ["Embedded", "EmbeddingError", "WorkerThread", "mount"]

START_TIMEOUT = 30.0
"""Seconds that a thread's start may take: three times what connecting to PostgreSQL may."""

STOP_MARGIN = timedelta(seconds=15)
"""What a thread has beyond `shutdown_grace` to record what was in flight and to close."""

LONGEST_PAUSE = 30.0
"""Seconds before a worker that failed is made anew; begins with one and doubles."""

log = structlog.get_logger(__name__)


class EmbeddingError(SurehookError):
    """A worker thread did not start."""


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

    @property
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


class WorkerThread:
    """A worker and housekeeping in a thread, for applications without an event loop.

    Start it in each process that serves, after that process was forked (gunicorn: ``post_fork``):
    a thread does not survive a fork. In a forked child an instance that the parent had started is
    a stopped one, and can be started.

    It stops when the interpreter exits, if not before, and lets what is in flight end within
    `shutdown_grace`. A process killed by a signal that nobody handles, or by ``os._exit``, gets no
    such chance: its deliveries in flight are sent again when their leases end.

    Call `start` and `stop` from one thread; `poke` and `metrics` from any.
    """

    def __init__(self, settings: Settings, *, migrate: bool = False) -> None:
        """``migrate`` is that of `Embedded`."""
        self._settings = settings
        self._migrate = migrate
        self._running: _Running | None = None
        self._stops_at_exit = False

    @property
    def running(self) -> bool:
        """Whether the thread runs in this process."""
        return self._here() is not None

    def start(self, timeout: float = START_TIMEOUT) -> None:
        """Start the thread, and wait up to ``timeout`` seconds until its worker runs. Does nothing
        when it runs already.

        Raises `SettingsError`, `MigrationError` or the database driver's error for what prevents
        it, and `EmbeddingError` when nothing was heard of it in time.
        """
        if self.running:
            return
        self._running = _Running(self._settings, self._migrate)
        try:
            self._running.start(timeout)
        except BaseException:
            self._running = None
            raise
        if not self._stops_at_exit:
            self._stops_at_exit = True
            # The interpreter waits for other threads before it calls the functions of `atexit`,
            # and those of SQLite's connections end only when we close them.
            getattr(threading, "_register_atexit", atexit.register)(self.stop)

    def stop(self, timeout: float | None = None) -> bool:
        """Finish what is in flight and end the thread. Returns whether it ended within ``timeout``
        seconds; left out, that is `shutdown_grace` and 15 s. Does nothing when it does not run."""
        running, self._running = self._here(), None
        if running is None:
            return True
        if timeout is None:
            timeout = (self._settings.shutdown_grace + STOP_MARGIN).total_seconds()
        return running.stop(timeout)

    def poke(self) -> None:
        """Say that a transaction that published has been committed; see `Embedded.poke`."""
        running = self._here()
        if running is not None:
            running.embedded.poke()

    def metrics(self) -> tuple[bytes, str]:
        """Return the metrics of this process's thread in Prometheus' text format, and its content
        type. Raises `EmbeddingError` when it does not run."""
        running = self._here()
        if running is None:
            raise EmbeddingError("the worker thread does not run in this process: start it first")
        return running.embedded.metrics()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def _here(self) -> _Running | None:
        running = self._running
        return running if running is not None and running.here else None


class _Running:
    """One run of the thread."""

    def __init__(self, settings: Settings, migrate: bool) -> None:
        self.embedded = Embedded(settings, migrate=migrate)
        self._pid = os.getpid()
        self._started: Future[None] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._asked_to_stop = False
        # A daemon, so that one that does not end in time can't hold up the exit for ever.
        self._thread = threading.Thread(target=self._run, name="surehook-worker", daemon=True)

    @property
    def here(self) -> bool:
        # After a fork the loop's wake-up pipe is shared with the parent: it must not be touched.
        return self._pid == os.getpid() and self._thread.is_alive()

    def start(self, timeout: float) -> None:
        self._thread.start()
        try:
            self._started.result(timeout)
        except TimeoutError:
            if self._started.done():
                raise  # the driver's own
            self._stop_soon()
            raise EmbeddingError(
                f"database_url: the worker thread did not start within {timeout:g} s"
            ) from None
        except BaseException:
            self._thread.join()
            raise

    def stop(self, timeout: float) -> bool:
        self._stop_soon()
        self._thread.join(timeout)
        if self._thread.is_alive():
            log.error("worker_thread_left_running", seconds=timeout)
            return False
        return True

    def _stop_soon(self) -> None:
        self._asked_to_stop = True
        if self._loop is not None and self._stopping is not None:
            with suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self._stopping.set)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(self._main())
        except BaseException as error:
            if self._started.done():
                log.exception("worker_thread_failed")
            else:
                self._started.set_exception(error)

    async def _main(self) -> None:
        self._stopping = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        async with self.embedded.lifespan():
            self._started.set_result(None)
            if not self._asked_to_stop:
                await self._stopping.wait()
