"""Every Python example in the documentation imports what exists."""

from __future__ import annotations

import ast
import importlib
import re
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = ("wire", "sender", "receiver", "delivery_service")
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])
_BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def imports(page: str) -> list[tuple[str, str]]:
    """Module and name of each import from our packages in the page's Python examples."""
    found = []
    for _, code in _BLOCK.findall(page):
        tree = compile(
            textwrap.dedent(code),
            "example",
            "exec",
            ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
        )
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                found += [(node.module, alias.name) for alias in node.names]
            elif isinstance(node, ast.Import):
                found += [(alias.name, "__name__") for alias in node.names]
    return [each for each in found if each[0].partition(".")[0] in OURS]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_import_what_exists(path: Path) -> None:
    for module, name in imports(path.read_text(encoding="utf-8")):
        assert hasattr(importlib.import_module(module), name), f"{module}.{name}"


def test_a_missing_name_would_be_noticed() -> None:
    found = imports("```python\nfrom sender import nonsense\n```\n")
    assert found == [("sender", "nonsense")]
