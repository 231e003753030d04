"""Make ``.venv`` with the exact tested versions, or do nothing when it is already right.

Standard library only. A stamp inside ``.venv`` is written last and names everything the
environment depends on; whenever it does not match (first run, interrupted install, moved folder,
other Python, changed lock, deleted packages), the environment is made anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / ".surehook-stamp"
LOCK = ROOT / "requirements.lock"

# Settings of the machine's pip that would send packages elsewhere than into .venv.
_MISPLACING = ("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_NO_DEPS")


def main() -> int:
    lock = os.open(ROOT, os.O_RDONLY)
    # Two make commands at once: the second waits for the first. The installer inherits the lock, so
    # that one which outlives an interrupted make can't write into the environment made after it.
    fcntl.flock(lock, fcntl.LOCK_EX)
    key = _key()
    if _is_ready(key):
        return 0
    uv = _uv()
    print(f"Installing into .venv ({'uv' if uv else 'pip'}, {sys.executable}) …", flush=True)
    try:
        _remove(VENV)
        for command in _commands(uv):
            _run(command, lock)
    except subprocess.CalledProcessError as error:
        print(f"\nInstalling into .venv failed with {error.returncode}.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted; the next command starts again.", file=sys.stderr)
        return 130
    STAMP.write_text("\n".join([key, *_installed()]) + "\n")
    return 0


def _key() -> str:
    """Hash of everything that makes an environment this one."""
    digest = hashlib.sha256()
    for path in (ROOT / "pyproject.toml", LOCK, Path(__file__)):
        digest.update(path.read_bytes() + b"\0")
    for text in (str(ROOT), os.path.realpath(sys.executable), sys.version):
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()


def _is_ready(key: str) -> bool:
    try:
        recorded, *packages = STAMP.read_text().splitlines()
        if recorded != key or not set(packages) <= set(_installed()):
            return False
        probe = "import sys, pytest, wire; print(sys.prefix)"
        prefix = subprocess.run(
            [PYTHON, "-c", probe], capture_output=True, text=True, check=True, cwd=VENV
        ).stdout.strip()
        return Path(prefix).samefile(VENV)
    except (OSError, ValueError, subprocess.CalledProcessError):
        return False


def _installed() -> list[str]:
    """The ``.dist-info`` folders and commands in the environment."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = (VENV / "lib" / version / "site-packages").glob("*.dist-info")
    return sorted(path.name for path in (*packages, *(VENV / "bin").iterdir()))


def _uv() -> str | None:
    found = shutil.which("uv")
    # One in `.venv` would be removed with it.
    if found is None or VENV in Path(found).parents:
        return None
    works = subprocess.run([found, "--version"], capture_output=True, check=False)
    return found if works.returncode == 0 else None


def _remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def _commands(uv: str | None) -> list[list[str]]:
    """What makes an environment: create it, the locked versions, the project itself."""
    if uv:
        create = [uv, "venv", "--quiet", "--no-project", "--python", sys.executable, str(VENV)]
        install = [uv, "pip", "install", "--quiet", "--python", str(PYTHON)]
    else:
        create = [sys.executable, "-m", "venv", str(VENV)]
        install = [str(PYTHON), "-m", "pip", "install", "--quiet", "--no-input"]
        install.append("--disable-pip-version-check")
    return [
        create,
        [*install, "--requirement", str(LOCK)],
        [*install, "--no-deps", "--editable", str(ROOT)],
    ]


def _run(command: list[str], lock: int) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in _MISPLACING}
    # Run outside the project: its folders must not shadow what pip imports.
    outside = sysconfig.get_path("stdlib")
    subprocess.run(command, check=True, env=environment, cwd=outside, pass_fds=[lock])


if __name__ == "__main__":
    sys.exit(main())
