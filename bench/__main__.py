"""``python -m bench`` runs all benchmarks, ``python -m bench NAME --json FILE`` one of them."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

BENCHES = (
    "drain", "publish", "sqlite", "latency", "slow", "neighbour", "growth", "memory", "receiver",
    "recover",
)  # fmt: skip

console = Console()


def main(
    name: Annotated[str | None, typer.Argument(help=f"One of: {', '.join(BENCHES)}.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the result here.")] = None,
) -> None:
    """Run one benchmark, or all; each beside a yardstick measured in the same run."""
    if name is not None and name not in BENCHES:
        raise typer.BadParameter(f"no benchmark {name!r}; choose from {', '.join(BENCHES)}")
    results = [_run(each) for each in ([name] if name else BENCHES)]
    if json_file is not None:
        written = results[0] if name else results
        json_file.write_text(json.dumps(written, indent=2) + "\n")


def _run(name: str) -> dict[str, Any]:
    console.rule(name)
    result: dict[str, Any] = importlib.import_module(f"bench.{name}").run()
    table = Table("", "", "value", title=name)
    for part in ("figures", "yardstick", "ratio"):
        for label, value in _flat(result[part]):
            table.add_row(part, label, f"{value:,.3f}" if isinstance(value, float) else str(value))
    console.print(table)
    return result


def _flat(value: Any, prefix: str = "") -> list[tuple[str, Any]]:
    if not isinstance(value, dict):
        return [(prefix, value)]
    return [
        row
        for key, inner in value.items()
        for row in _flat(inner, f"{prefix}.{key}" if prefix else str(key))
    ]


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(main)
    app()
