"""A worker in a thread, for applications without an event loop."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread  # noqa: F401 - what it does at exit must come after what we do
import os
import threading
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from typing import ClassVar, Self

import structlog

from delivery_service.bootstrap import loop_factory
from delivery_service.embedding.asgi import Embedded
from delivery_service.settings import Settings
from wire.errors import SurehookError

START_TIMEOUT = 30.0
"""Seconds that a thread's start may take: three times what connecting to PostgreSQL may."""

STOP_MARGIN = timedelta(seconds=15)
"""What a thread has beyond `shutdown_grace` to record what was in flight and to close."""

log = structlog.get_logger(__name__)


class EmbeddingError(SurehookError):
    """A worker thread did not start."""


class WorkerThread:
    """A worker and housekeeping in a thread, for applications without an event loop.

    Start it in each process that serves, after that process was forked (gunicorn: ``post_fork``):
    a thread does not survive a fork. A child of a process whose thread ran at the fork can't start
    one: locks that the thread held at that moment, in SQLite for one, are never released there.

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
        it, and `EmbeddingError` when nothing was heard of it in time, or when a thread of the
        parent ran when this process was forked.
        """
        if self.running:
            return
        if _Running.forked:
            raise EmbeddingError(
                "this process was forked while a worker thread ran, whose locks may be held for"
                " ever; start it after the fork only (gunicorn: post_fork)"
            )
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

    alive: ClassVar[set[_Running]] = set()
    forked: ClassVar[bool] = False
    """Whether a thread ran in the parent when this process was forked."""

    @classmethod
    def after_fork(cls) -> None:
        cls.forked = cls.forked or bool(cls.alive)
        cls.alive.clear()

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
        self.alive.add(self)
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
        finally:
            self.alive.discard(self)

    async def _main(self) -> None:
        self._stopping = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        async with self.embedded.lifespan():
            self._started.set_result(None)
            if not self._asked_to_stop:
                await self._stopping.wait()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_Running.after_fork)
