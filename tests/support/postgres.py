"""A real PostgreSQL server for tests, and fresh databases on it."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy.engine import URL, make_url

from tests.support.parts import DATABASE_URL_VARIABLE, require
from tests.support.ports import HOST, accepts, free_port
from tests.support.waiting import wait_until

# Run as root, the server refuses to start; this account exists everywhere.
UNPRIVILEGED = "nobody"


class Postgres:
    """A PostgreSQL server. Every database it gives out is new and is dropped by ``drop``."""

    def __init__(
        self,
        url: URL,
        process: subprocess.Popen[bytes] | None = None,
        start: Callable[[], subprocess.Popen[bytes]] | None = None,
    ) -> None:
        self._url = url
        self._process = process
        self._start = start
        self._numbers = itertools.count(1)
        self._templates: dict[str, str] = {}
        self._admin = psycopg.connect(_libpq(url), autocommit=True)

    @property
    def pid(self) -> int | None:
        """The postmaster's pid; None for a server that was not started here."""
        return self._process.pid if self._process else None

    def url(self, database: str, driver: str = "asyncpg") -> str:
        """SQLAlchemy URL of a database, for example with the driver ``psycopg``."""
        url = self._url.set(drivername=f"postgresql+{driver}", database=database)
        return url.render_as_string(hide_password=False)

    def create_database(self, *, template: str = "template0") -> str:
        """Create a database, empty unless another template is named. Returns its name."""
        # Both kinds of copying cost about the same on disk; in memory this one is the quicker.
        name = f"surehook_test_{os.getpid()}_{next(self._numbers)}"
        self._execute(
            "CREATE DATABASE {} TEMPLATE {} ENCODING 'UTF8' STRATEGY FILE_COPY", name, template
        )
        return name

    def template(self, key: str, prepare: Callable[[str], None]) -> str:
        """A database to copy from, prepared once for each ``key``.

        ``prepare`` gets the name of an empty database and must leave no connection open.
        """
        if key not in self._templates:
            name = self.create_database()
            prepare(name)
            self._templates[key] = name
        return self._templates[key]

    def drop(self, database: str) -> None:
        """Drop a database, and end the connections to it."""
        self._execute("DROP DATABASE IF EXISTS {} WITH (FORCE)", database)

    def end_connections(self, database: str) -> int:
        """End every connection to a database, as a fail-over does. Returns how many there were."""
        query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
        return self._admin.execute(query, [database]).rowcount

    def restart(self, how: signal.Signals) -> None:
        """Restart a server that was started here: SIGINT is a fast shutdown, SIGQUIT an immediate
        one, after which it recovers as from a crash."""
        assert self._start is not None, "not a server of this run"
        self.stop(how)
        self._process = self._start()
        self._admin.close()
        self._admin = psycopg.connect(_libpq(self._url), autocommit=True)

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """Stop a server that was started here."""
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """Drop the templates and disconnect."""
        for name in self._templates.values():
            self.drop(name)
        self._admin.close()

    def _execute(self, statement: str, *names: str) -> None:
        self._admin.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


@contextmanager
def running_postgres(
    *, fsync: bool = False, settings: dict[str, str] | None = None
) -> Iterator[Postgres]:
    """A server of its own on loopback TCP, removed afterwards.

    ``fsync=False`` trades safety against power cuts for speed; ``fsync=True`` is for tests and
    benchmarks that mean the real cost. ``settings`` are added to the configuration.
    """
    bin_path = Path(require("postgresql")).parent
    # Not pytest's folder: that one is closed to the account the server runs under.
    folder = Path(tempfile.mkdtemp(prefix="surehook-pg-", dir=None if fsync else _memory()))
    try:
        account = _account(folder)
        bin_path = _reachable(bin_path, folder, account)
        data = folder / "data"
        _initialise(bin_path, data, account)
        options = _settings(fsync, settings)
        process, port = _start(bin_path, data, account, options)
        url = URL.create("postgresql", "postgres", None, HOST, port)
        server = Postgres(
            url, process, lambda: _start(bin_path, data, account, options, port=port)[0]
        )
        try:
            try:
                yield server
            finally:
                server.close()
        finally:
            # Immediate shutdown: nothing here is kept.
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def postgres_for_tests() -> Iterator[Postgres]:
    """The server named by ``SUREHOOK_TEST_DATABASE_URL``, or one started for this run."""
    url = os.environ.get(DATABASE_URL_VARIABLE)
    if not url:
        with running_postgres() as server:
            yield server
        return
    server = Postgres(make_url(url))
    try:
        yield server
    finally:
        server.close()


def _libpq(url: URL) -> str:
    database = url.database or "postgres"
    return url.set(drivername="postgresql", database=database).render_as_string(False)


def _memory() -> Path | None:
    """A folder in memory with room for the tests' databases, if this machine has one.

    Creating a database writes some 300 small files: 8 ms there, 80 to 240 ms on a virtual disk.
    """
    folder = Path("/dev/shm")
    try:
        room = shutil.disk_usage(folder).free
    except OSError:
        return None
    return folder if room > 2**30 and os.access(folder, os.W_OK | os.X_OK) else None


def _account(folder: Path) -> str | None:
    """The account to run under when the tests run as root, made owner of ``folder``."""
    if os.geteuid() != 0:
        return None
    entry = pwd.getpwnam(UNPRIVILEGED)
    os.chown(folder, entry.pw_uid, entry.pw_gid)
    return UNPRIVILEGED


def _reachable(bin_path: Path, folder: Path, account: str | None) -> Path:
    """``bin_path``, or a copy of it when the account may not look into a folder above."""
    if account is None or all(parent.stat().st_mode & 0o001 for parent in bin_path.parents):
        return bin_path
    package = bin_path.parents[1]
    copy = folder / "site" / package.name
    shutil.copytree(bin_path.parent, copy / bin_path.parent.name, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, folder / "site" / libraries.name, symlinks=True)
    return copy / bin_path.parent.name / "bin"


def _as(account: str | None) -> dict[str, Any]:
    """Arguments for ``subprocess`` that give up root for the account."""
    if account is None:
        return {}
    return {"user": account, "group": pwd.getpwnam(account).pw_gid, "extra_groups": []}


def _initialise(bin_path: Path, data: Path, account: str | None) -> None:
    command = [str(bin_path / "initdb"), "--pgdata", str(data), "--username", "postgres"]
    command += ["--auth=trust", "--encoding=UTF8", "--no-sync", "--no-instructions"]
    command += ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", **_as(account))
    if done.returncode:
        raise RuntimeError(f"initdb failed:\n{done.stdout}{done.stderr}")


def _settings(fsync: bool, added: dict[str, str] | None) -> dict[str, str]:
    durable = "on" if fsync else "off"
    return {
        "listen_addresses": HOST,
        "max_connections": "200",
        "shared_buffers": "128MB",
        "fsync": durable,
        "synchronous_commit": durable,
        "full_page_writes": durable,
        "log_min_messages": "warning",
        **(added or {}),
    }


def _start(
    bin_path: Path,
    data: Path,
    account: str | None,
    settings: dict[str, str],
    *,
    port: int | None = None,
) -> tuple[subprocess.Popen[bytes], int]:
    # A port can be taken between being found and being used, hence several tries.
    log = data.parent / "log"
    for _ in range(5):
        chosen = port or free_port()
        options = {**settings, "port": str(chosen), "unix_socket_directories": ""}
        command = [str(bin_path / "postgres"), "-D", str(data)]
        command += [f"--{name}={value}" for name, value in options.items()]
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                cwd="/",
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                **_as(account),
            )

        def is_up(process: subprocess.Popen[bytes] = process, data: Path = data) -> bool:
            state = data / "postmaster.pid"
            ready = state.exists() and state.read_text().rstrip().endswith("ready")
            return ready or process.poll() is not None

        wait_until(is_up, deadline=60, what="PostgreSQL is ready")
        if process.poll() is None and accepts(chosen):
            return process, chosen
    raise RuntimeError(f"PostgreSQL did not start:\n{log.read_text(errors='replace')[-4000:]}")
