"""Checks of the documentation, run by ``make check``. Standard library only.

Links lead somewhere, every page is reachable from ``docs/index.md``, Python examples compile, the
changelog has its Unreleased section, spelling is British, and no page names a developer's folder.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

START = "docs/index.md"
TOP_LEVEL = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")

_FENCE = re.compile(r"^\s*(```+|~~~+)\s*([\w+-]*)")
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$")
_ANCHOR = re.compile(r"<a\s+(?:id|name)=\"([^\"]+)\"")
_INLINE_LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_REFERENCE_LINK = re.compile(r"^\[[^\]]+\]:\s+(\S+)")
_INLINE_CODE = re.compile(r"(`+)(?:.*?)\1")
_SCHEME = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_MACHINE_PATH = re.compile(r"(?<![\w.])(?:/(?:work|root|home|Users)/|/tmp/wt|[A-Z]:\\Users)")
_UNRELEASED = re.compile(r"^## \[?Unreleased\]?", re.MULTILINE)
_AMERICAN = re.compile(
    r"\b(?:\w*(?:serializ|recogniz|normaliz|organiz|initializ|authoriz|synchroniz|customiz|"
    r"optimiz|summariz|prioritiz|minimiz|utiliz)(?:e|es|ed|er|ing|ation)|"
    r"behaviors?|colors?|colored|favorites?|honor(?:s|ed)?|neighbors?|"
    r"canceled|canceling|labeled|signaling|modeling|catalogs?|centers?|defense|fulfills?|gray)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Page:
    """A Markdown file, split into its prose lines and its fenced code blocks."""

    path: Path
    prose: list[tuple[int, str]]
    blocks: list[tuple[int, str, str]]
    """Line number, language, code."""

    @classmethod
    def read(cls, path: Path) -> Page:
        prose: list[tuple[int, str]] = []
        blocks: list[tuple[int, str, str]] = []
        fence, language, begin, code = "", "", 0, list[str]()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            mark = _FENCE.match(line)
            if not fence and mark:
                fence, language, begin, code = mark[1], mark[2], number, []
            elif fence and line.strip() == fence:
                blocks.append((begin, language, "\n".join(code)))
                fence = ""
            elif fence:
                code.append(line)
            else:
                prose.append((number, line))
        if fence:
            blocks.append((begin, "unclosed", ""))
        return cls(path, prose, blocks)

    def links(self) -> Iterator[tuple[int, str]]:
        """Line number and target of every link that does not leave the project."""
        for number, line in self.prose:
            text = _INLINE_CODE.sub("", line)
            for target in (*_INLINE_LINK.findall(text), *_REFERENCE_LINK.findall(text)):
                if not _SCHEME.match(target):
                    yield number, target

    def anchors(self) -> set[str]:
        """The anchors of the headings, as GitHub makes them, and of explicit ``<a id>`` tags."""
        found: set[str] = set()
        for _, line in self.prose:
            found.update(_ANCHOR.findall(line))
            if heading := _HEADING.match(line):
                text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
                slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
                unique, count = slug, 0
                while unique in found:
                    count += 1
                    unique = f"{slug}-{count}"
                found.add(unique)
        return found


def problems(root: Path) -> list[str]:
    """Everything that is wrong with the documentation under ``root``, one line each."""
    paths = [root / name for name in TOP_LEVEL]
    paths += [*(root / "docs").rglob("*.md"), *(root / "examples").rglob("*.md")]
    missing = [path for path in (*paths, root / START) if not path.exists()]
    if missing:
        return [f"{path.relative_to(root)}: is missing" for path in sorted(set(missing))]
    pages = {path.resolve(): Page.read(path) for path in sorted(paths)}
    found: list[tuple[Path, int, str]] = []
    for path, page in pages.items():
        for number, message in (*_links(page, pages), *_code(page), *_words(page)):
            found.append((path, number, message))
    found += [(path, 1, f"is not reachable from {START}") for path in _unreachable(root, pages)]
    changelog = root / "CHANGELOG.md"
    if not _UNRELEASED.search(changelog.read_text(encoding="utf-8")):
        found.append((changelog.resolve(), 1, "has no Unreleased section"))
    base = root.resolve()
    return [f"{path.relative_to(base)}:{number}: {text}" for path, number, text in sorted(found)]


def _links(page: Page, pages: dict[Path, Page]) -> Iterator[tuple[int, str]]:
    for number, target in page.links():
        name, _, anchor = target.partition("#")
        path = (page.path.parent / name).resolve() if name else page.path.resolve()
        if not path.exists():
            yield number, f"link to {target}: no such file"
        elif anchor and path in pages and anchor not in pages[path].anchors():
            yield number, f"link to {target}: no such heading"


def _code(page: Page) -> Iterator[tuple[int, str]]:
    for number, language, code in page.blocks:
        if language == "unclosed":
            yield number, "code block is not closed"
        if language != "python":
            continue
        try:
            compile(textwrap.dedent(code), str(page.path), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        except SyntaxError as error:
            yield number + (error.lineno or 0), f"Python example: {error.msg}"


def _words(page: Page) -> Iterator[tuple[int, str]]:
    for number, line in page.prose:
        for word in _AMERICAN.findall(_INLINE_CODE.sub("", line)):
            yield number, f"American spelling: {word}"
    for number, line in enumerate(page.path.read_text(encoding="utf-8").splitlines(), 1):
        if match := _MACHINE_PATH.search(line):
            yield number, f"names a folder of one machine: {match[0]}"


def _unreachable(root: Path, pages: dict[Path, Page]) -> list[Path]:
    docs = (root / "docs").resolve()
    start = (root / START).resolve()
    seen, waiting = {start}, [start]
    while waiting:
        page = pages[waiting.pop()]
        for _, target in page.links():
            path = (page.path.parent / target.partition("#")[0]).resolve()
            if path in pages and path not in seen:
                seen.add(path)
                waiting.append(path)
    return [path for path in pages if docs in path.parents and path not in seen]


def main() -> int:
    found = problems(Path(__file__).resolve().parent.parent)
    for line in found:
        print(line)
    print(f"docs: {len(found)} problem(s)" if found else "docs: all links, pages and examples good")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
