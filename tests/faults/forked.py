"""Worker processes that start in a moment: forked from one that has imported everything.

They are processes like any other, as is what they run: `surehook worker`. Only the two seconds of
imports are saved, of which a test that kills workers all the time would need many.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.support.waiting import ConditionNotMetError, wait_until

PRELOADED = ["aiosqlite", "asyncpg", "uvloop", "pytest", "delivery_service.cli.serving"]

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([*PRELOADED, __name__, "tests.faults.worker_program"])


def _main(arguments: Sequence[str], environment: Mapping[str, str], output: Path) -> None:
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)
    # One that hangs tells where, before the test that waits for it gives up.
    faulthandler.dump_traceback_later(50)
    os.environ.update(environment)
    sys.argv = ["worker_program", *arguments]
    from tests.faults.worker_program import main

    main()


class ForkedWorker:
    """A worker process. ``output`` is a file that its output is added to."""

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], output: Path
    ) -> None:
        self._output = output
        self._process = _context.Process(
            target=_main, args=(arguments, environment, output), daemon=True
        )
        self._process.start()

    @property
    def running(self) -> bool:
        return self._process.is_alive()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._process.exitcode

    def wait_for(self, condition: Callable[[], object], *, deadline: float = 60.0) -> None:
        """Wait until ``condition()`` holds; fail when the worker ends before."""

        def holds() -> object:
            assert self.running, f"ended with {self.returncode}: {self.output[-4000:]}"
            return condition()

        try:
            wait_until(holds, deadline=deadline)
        except ConditionNotMetError as error:
            raise ConditionNotMetError(f"{error}\n{self.output[-8000:]}") from None

    def kill(self) -> None:
        """``kill -9``, and wait until it is gone."""
        self._process.kill()
        self._process.join()

    def terminate(self, *, deadline: float = 30.0) -> int:
        """Ask it to stop (SIGTERM), wait, and return its exit code."""
        self._process.terminate()
        self._process.join(deadline)
        code = self._process.exitcode
        assert code is not None, f"did not end within {deadline:g} s: {self.output[-4000:]}"
        return code

    @property
    def output(self) -> str:
        """Everything that the workers of this file have printed."""
        return self._output.read_text() if self._output.exists() else ""
