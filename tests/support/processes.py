"""Real subprocesses, killed by pid and always cleaned up."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]


class Process:
    """A running program. Its output (stdout and stderr together) is collected as it comes."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], cwd: Path | None
    ) -> None:
        self.command = tuple(command)
        self._popen = subprocess.Popen(
            self.command,
            cwd=cwd or ROOT,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # A group of its own, so that children of the program end with it.
            start_new_session=True,
        )
        self._chunks: list[bytes] = []
        self._reader = threading.Thread(target=self._collect, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def output(self) -> str:
        """Everything printed so far."""
        return b"".join(self._chunks).decode(errors="replace")

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while the program runs."""
        return self._popen.poll()

    @property
    def running(self) -> bool:
        return self.returncode is None

    def wait_for(
        self, ready: str | Callable[[], object], *, deadline: float = 30.0
    ) -> re.Match[str] | None:
        """Wait until the output matches the regular expression, or the callable returns true.

        Fails at once, with the output, when the program ends before.
        """
        match: re.Match[str] | None = None

        def is_ready() -> bool:
            nonlocal match
            ended = not self.running
            if ended:
                self._reader.join(5)
            if isinstance(ready, str):
                match = re.search(ready, self.output, re.MULTILINE)
                done = match is not None
            else:
                done = bool(ready())
            if ended and not done:
                raise AssertionError(self._report(f"ended with {self.returncode} before {ready!r}"))
            return done

        try:
            wait_until(is_ready, deadline=deadline, what=f"{ready!r}")
        except AssertionError as error:
            raise AssertionError(self._report(str(error))) from None
        return match

    def wait(self, *, deadline: float = 60.0) -> int:
        """Wait for the program to end by itself and return its exit code."""
        try:
            code = self._popen.wait(deadline)
        except subprocess.TimeoutExpired:
            raise AssertionError(self._report(f"did not end within {deadline:g} s")) from None
        self._reader.join(5)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the program alone, by its pid."""
        self._popen.send_signal(number)

    def terminate(self, *, deadline: float = 30.0) -> int:
        """Ask the program to stop (SIGTERM), wait, and return its exit code."""
        self.send_signal(signal.SIGTERM)
        return self.wait(deadline=deadline)

    def kill(self) -> None:
        """``kill -9`` the program and everything it started, and wait until it is gone."""
        # A process that was not waited for keeps its pid, so the group is certainly ours.
        if self._popen.returncode is None:
            os.killpg(self.pid, signal.SIGKILL)
        self._popen.wait()
        self._close()

    def kill_alone(self) -> None:
        """``kill -9`` the program by its pid; children that it started live on."""
        self.send_signal(signal.SIGKILL)
        self._popen.wait()

    def _collect(self) -> None:
        assert self._popen.stdout is not None
        while chunk := os.read(self._popen.stdout.fileno(), 65536):
            self._chunks.append(chunk)

    def _close(self) -> None:
        self._reader.join(5)
        if self._popen.stdout is not None and not self._reader.is_alive():
            self._popen.stdout.close()

    def _report(self, problem: str) -> str:
        return f"{' '.join(self.command)}: {problem}\n--- output ---\n{self.output[-8000:]}"


class Processes:
    """Starts programs, and at the end of the ``with`` block kills those that still run."""

    def __init__(self) -> None:
        self._started: list[Process] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill_all()

    def start(
        self, *command: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> Process:
        """Start a program. ``env`` is added to this process's environment."""
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}
        # The checkout comes first, so that the code under test runs in any working directory.
        path = [str(ROOT), *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(path)
        process = Process(command, environment, cwd)
        self._started.append(process)
        return process

    def python(
        self,
        module: str,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Process:
        """Start ``python -m module arguments…`` with the Python that runs the tests."""
        return self.start(sys.executable, "-m", module, *arguments, env=env, cwd=cwd)

    def kill_all(self) -> None:
        """Kill what still runs; the last started goes first."""
        for process in reversed(self._started):
            process.kill()
        self._started.clear()
