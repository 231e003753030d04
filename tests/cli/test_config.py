"""`surehook config`, starting, and completion in shells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet

from delivery_service.settings import Settings
from tests.cli.conftest import COMMAND
from wire.version import VERSION

ROOT = Path(__file__).resolve().parents[2]

Bare = Callable[..., Any]


def config(bare: Bare, *options: str) -> dict[str, dict[str, Any]]:
    rows = json.loads(bare("config", "--json", *options).stdout)
    return {row["setting"]: row for row in rows}


def test_every_setting_has_its_value_and_origin(
    bare: Bare, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("surehook.toml").write_text('port = 9001\nlease = 90\nprofiles = ["github"]\n')
    monkeypatch.setenv("SUREHOOK_LEASE", "120.5")
    monkeypatch.setenv("surehook_log_level", "debug")
    found = config(bare)
    assert list(found) == list(Settings.model_fields)
    assert (found["port"]["value"], found["port"]["origin"]) == (9001, "file (surehook.toml)")
    assert found["lease"]["value"] == 120.5
    assert found["lease"]["origin"] == "environment (SUREHOOK_LEASE)"
    assert found["log_level"]["origin"].startswith("environment")
    assert found["profiles"]["value"] == ["github"]
    assert found["host"] == {"setting": "host", "value": "127.0.0.1", "origin": "default"}
    assert found["retention"]["value"] == 90 * 86_400
    assert config(bare, "--changed").keys() == {"port", "lease", "log_level", "profiles"}
    shown = bare("config").stdout
    assert "file (surehook.toml)" in shown
    assert "(not set)" in shown


def test_the_file_may_be_elsewhere(bare: Bare, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("other.toml").write_text("port = 9002\n")
    monkeypatch.setenv("SUREHOOK_CONFIG", "other.toml")
    assert config(bare)["port"]["origin"] == "file (other.toml)"


def test_no_secret_is_shown(bare: Bare, monkeypatch: pytest.MonkeyPatch) -> None:
    key = Fernet.generate_key().decode()
    monkeypatch.setenv("SUREHOOK_ENCRYPTION_KEYS", f"{key},{key}")
    url = "postgresql://me:hunter2@db.example/hooks?sslmode=require&password=hunter3"
    monkeypatch.setenv("SUREHOOK_DATABASE_URL", url)
    text = bare("config").stdout + bare("config", "--json").stdout
    for secret in (key, "hunter2", "hunter3"):
        assert secret not in text
    found = config(bare)
    assert found["encryption_keys"]["value"] == ["***", "***"]
    assert found["database_url"]["value"].startswith("postgresql://me:***@db.example/hooks?")
    assert "sslmode=require" in found["database_url"]["value"]


def test_nothing_changed(bare: Bare) -> None:
    assert bare("config", "--changed").stdout == "Every setting is left at its default.\n"


def test_python_m_is_the_command(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "--version"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (done.returncode, done.stdout) == (0, f"surehook {VERSION}\n")


@pytest.mark.parametrize(
    ("typed", "offered"), [("surehook st", "status"), ("surehook endpoint ro", "rotate")]
)
def test_shells_complete_commands(typed: str, offered: str, tmp_path: Path) -> None:
    words = typed.split()
    done = subprocess.run(
        COMMAND,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "_SUREHOOK_COMPLETE": "complete_bash",
            "COMP_WORDS": typed,
            "COMP_CWORD": str(len(words) - 1),
        },
    )
    assert done.stdout.split() == [offered], done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_can_be_installed(shell: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "--install-completion", shell],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "HOME": str(tmp_path),
            "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
        },
    )
    assert done.returncode == 0, done.stderr
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("_SUREHOOK_COMPLETE" in path.read_text() for path in written)


def test_commands_that_only_look_start_without_the_service(tmp_path: Path) -> None:
    program = (
        "import sys, delivery_service.cli;"
        "print([m for m in ('fastapi', 'aiohttp', 'alembic', 'uvicorn') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout == "[]\n", done.stderr
