"""Several worker processes under one parent, which starts, watches and stops them.

The children share nothing but the database; nothing is assigned to any of them, so whichever
lives does all the work there is.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

import structlog

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
"""Seconds before a child that crashed is started again; doubles with each crash in a row."""

STEADY = 60.0
"""Seconds after which a child's crash is no longer counted as one of a row."""

MARGIN = timedelta(seconds=15)
"""What children have beyond their own grace to record and to close, before they are killed."""

log = structlog.get_logger(__name__)

Target = Callable[[int], None]


def run_processes(count: int, target: Target, grace: timedelta) -> int:
    """Run ``target(index)`` in ``count`` processes until SIGTERM or SIGINT; index from 0.

    A child that ends by itself is started again, after a pause that grows while it keeps
    crashing. Signals are passed on; children that have not ended ``grace`` (and a margin) later
    are killed. If the parent is killed its children stop as if by SIGTERM. ``target`` must be
    picklable (each child is a new interpreter) and end on SIGTERM.

    Returns the exit code: 0, or 1 when a child had to be killed. Call it in the main thread.
    """
    children = [_Child(index, target) for index in range(count)]
    with _signals() as stopped:
        for child in children:
            child.start()
        while not stopped.received:
            pause = min(child.tend() for child in children)
            wait([stopped.pipe, *(s for child in children for s in child.sentinels)], pause)
        return _stop(children, grace + MARGIN)


class _Child:
    """One place for a process, and the process that fills it just now."""

    def __init__(self, index: int, target: Target) -> None:
        self._index = index
        self._target = target
        self._process: BaseProcess | None = None
        self._started_at = 0.0
        self._start_at = 0.0
        self._crashes = 0

    @property
    def sentinels(self) -> list[int]:
        return [] if self._process is None else [self._process.sentinel]

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(
            target=_run, args=(self._target, self._index), name=f"surehook-worker-{self._index}"
        )
        self._started_at = time.monotonic()
        self._process.start()
        log.info("process_started", index=self._index, pid=self._process.pid)

    def tend(self) -> float:
        """Start the process again if it ended and its pause is over. Returns the seconds until
        there may be something to do."""
        now = time.monotonic()
        if self._process is not None:
            if self._process.exitcode is None:
                return LONGEST_PAUSE
            self._start_at = now + self._pause(now)
            self._log_end()
            self._process.close()
            self._process = None
        if now >= self._start_at:
            self.start()
            return LONGEST_PAUSE
        return self._start_at - now

    def _pause(self, now: float) -> float:
        if now - self._started_at >= STEADY:
            self._crashes = 0
        self._crashes += 1
        return float(min(FIRST_PAUSE * 2 ** min(self._crashes - 1, 10), LONGEST_PAUSE))

    def _log_end(self) -> None:
        assert self._process is not None  # noqa: S101 - called for a process that ended
        log.warning(
            "process_ended",
            index=self._index,
            pid=self._process.pid,
            exit_code=self._process.exitcode,
            crashes_in_a_row=self._crashes,
        )

    def terminate(self) -> None:
        if self._process is not None:
            self._process.terminate()

    def join(self, seconds: float) -> bool:
        """Wait for the process to end; kill it if it has not by then. False if it was killed."""
        if self._process is None:
            return True
        self._process.join(seconds)
        if self._process.exitcode is not None:
            return True
        log.error("process_killed", index=self._index, pid=self._process.pid)
        self._process.kill()
        self._process.join()
        return False


def _stop(children: list[_Child], grace: timedelta) -> int:
    end = time.monotonic() + grace.total_seconds()
    for child in children:
        child.terminate()
    in_time = [child.join(max(0.0, end - time.monotonic())) for child in children]
    return 0 if all(in_time) else 1


class _Stopped:
    def __init__(self) -> None:
        self.pipe, self._end = os.pipe()
        self.received = False

    def receive(self, *_signal: object) -> None:
        if not self.received:
            self.received = True
            os.write(self._end, b"!")

    def close(self) -> None:
        os.close(self.pipe)
        os.close(self._end)


@contextmanager
def _signals() -> Iterator[_Stopped]:
    stopped = _Stopped()
    before = {
        number: signal.signal(number, stopped.receive) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        stopped.close()


def _run(target: Target, index: int) -> None:
    """What a child does: its target, and an eye on its parent."""
    # A terminal sends Ctrl-C to the children as well; they stop when the parent says so, and
    # not before their own handlers are in place.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    target(index)


def _stop_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        with suppress(ProcessLookupError):
            os.kill(os.getpid(), signal.SIGTERM)
