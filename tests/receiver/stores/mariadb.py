"""A real MariaDB server for tests."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pymysql

from tests.support.parts import require
from tests.support.ports import HOST, accepts, free_port
from tests.support.waiting import wait_until


class MariaDb:
    """A running server that gives out empty databases."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._numbers = itertools.count(1)

    def create_database(self) -> str:
        """SQLAlchemy URL of a new database."""
        name = f"surehook_{next(self._numbers)}"
        with pymysql.connect(host=HOST, port=self._port, user="root") as connection:
            # The usual case-insensitive collation: receipts must not depend on it.
            connection.cursor().execute(
                f"CREATE DATABASE {name} CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"
            )
        return f"mariadb+pymysql://root@{HOST}:{self._port}/{name}?charset=utf8mb4"


@contextmanager
def running_mariadb() -> Iterator[MariaDb]:
    """A server of its own on loopback, removed afterwards."""
    program = require("mariadb")
    folder = Path(tempfile.mkdtemp(prefix="surehook-mariadb-"))
    account = "nobody" if os.geteuid() == 0 else None
    try:
        if account:
            entry = pwd.getpwnam(account)
            os.chown(folder, entry.pw_uid, entry.pw_gid)
        with (folder / "log").open("wb") as log:
            process, port = _start(program, folder, account, log.fileno())
        try:
            yield MariaDb(port)
        finally:
            process.kill()
            process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(
    program: str, folder: Path, account: str | None, log: int
) -> tuple[subprocess.Popen[bytes], int]:
    data, port = folder / "data", free_port()
    install = shutil.which("mariadb-install-db") or shutil.which("mysql_install_db")
    assert install is not None, "mariadb-install-db comes with the server"
    user = [f"--user={account}"] if account else []
    subprocess.run(
        [
            install,
            "--no-defaults",
            f"--datadir={data}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            *user,
        ],
        check=True,
        stdout=log,
        stderr=log,
    )
    process = subprocess.Popen(
        [
            program, "--no-defaults", f"--datadir={data}", f"--port={port}",
            f"--bind-address={HOST}",
            f"--socket={folder / 'socket'}", f"--pid-file={folder / 'pid'}",
            "--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=32M",
            "--max-connections=300", "--skip-name-resolve", *user,
        ],
        stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=folder,
    )  # fmt: skip

    def is_up() -> bool:
        assert process.poll() is None, (folder / "log").read_text(errors="replace")[-4000:]
        return accepts(port)

    wait_until(is_up, deadline=60, what="MariaDB is ready")
    return process, port
