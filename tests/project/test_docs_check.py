"""The documentation checker finds what it is there for."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_check", ROOT / "docs" / "check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("# A\n\nSee [docs](docs/index.md#the-end).\n")
    (tmp_path / "CONTRIBUTING.md").write_text("# C\n")
    (tmp_path / "CHANGELOG.md").write_text("# L\n\n## [Unreleased]\n")
    (tmp_path / "docs/index.md").write_text("# I\n\n[page](page.md)\n\n## The `end`!\n")
    (tmp_path / "docs/page.md").write_text("# P\n\n```python\nawait x\n```\n")
    return tmp_path


def test_a_good_project_has_no_problems(check: ModuleType, project: Path) -> None:
    assert check.problems(project) == []


# Put together, so that no such folder stands in the project itself.
FOLDER = f"/{'root'}/"
NAMED = "names a folder of one machine: "


@pytest.mark.parametrize(
    ("path", "text", "problem"),
    [
        ("docs/page.md", "[x](gone.md)", "docs/page.md:1: link to gone.md: no such file"),
        ("docs/page.md", "[x]: ../gone", "docs/page.md:1: link to ../gone: no such file"),
        ("docs/page.md", "[x](index.md#no)", "docs/page.md:1: link to index.md#no: no such"),
        ("docs/lost.md", "# Lost", "docs/lost.md:1: is not reachable from docs/index.md"),
        ("docs/page.md", "```python\nx = \n```", "docs/page.md:2: Python example: invalid"),
        ("docs/page.md", "```sh\nls", "docs/page.md:1: code block is not closed"),
        ("docs/page.md", "\nserialized behavior", "docs/page.md:2: American spelling: serialized"),
        (
            "docs/page.md",
            f"`{FOLDER}x`",
            f"docs/page.md:1: {NAMED}{FOLDER}",
        ),
        ("CHANGELOG.md", "# L", "CHANGELOG.md:1: has no Unreleased section"),
    ],
)
def test_each_fault_is_found(
    check: ModuleType, project: Path, path: str, text: str, problem: str
) -> None:
    (project / path).write_text(text + "\n")
    assert any(found.startswith(problem) for found in check.problems(project))


def test_a_missing_page_is_a_problem(check: ModuleType, project: Path) -> None:
    (project / "CHANGELOG.md").unlink()
    assert check.problems(project) == ["CHANGELOG.md: is missing"]


def test_code_is_neither_spelt_nor_searched_for_links(check: ModuleType, project: Path) -> None:
    code = "`color` and `[x](gone.md)`\n\n```css\ncolor: gray\n```\n"
    (project / "docs/page.md").write_text(code)
    assert check.problems(project) == []
