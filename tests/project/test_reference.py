"""The generated pages are current, and the generator notices when they are not."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from delivery_service.settings import Settings

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "tools" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_pages_are_current(reference: ModuleType) -> None:
    assert reference.stale() == []


def test_every_setting_is_there_with_a_description(reference: ModuleType) -> None:
    text = reference.pages()["settings.md"]
    for name, field in Settings.model_fields.items():
        assert f"## `SUREHOOK_{name.upper()}`" in text
        assert field.description
        assert field.description in text


def test_every_command_is_there(reference: ModuleType) -> None:
    text = reference.pages()["cli.md"]
    commands = "up api worker migrate publish demo keys&create endpoint&add deliveries&redeliver"
    for command in commands.split():
        assert f"## `surehook {command.replace('&', ' ')}`" in text


def test_a_changed_or_missing_page_is_noticed(reference: ModuleType, tmp_path: Path) -> None:
    assert reference.stale(tmp_path) == ["cli.md", "settings.md"]
    for name, text in reference.pages().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert reference.stale(tmp_path) == []
    with (tmp_path / "cli.md").open("a") as page:
        page.write("more\n")
    assert reference.stale(tmp_path) == ["cli.md"]
