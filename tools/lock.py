"""Write ``requirements.lock``: one exact version of every package, for every Python and platform.

Needs uv (``pip install uv``). Arguments are passed on, for example ``--upgrade``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = "# The exact versions that are tested and installed. Written by `make lock`.\n"


def main(arguments: list[str]) -> int:
    command = ["uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11"]
    command += ["--extra", "dev", "--no-header", "--no-annotate", "--no-emit-index-url"]
    command += ["--no-emit-find-links", "--output-file", "requirements.lock", *arguments]
    # The machine's own places to find packages must not decide what gets locked.
    environment = {k: v for k, v in os.environ.items() if k != "UV_FIND_LINKS"}
    subprocess.run([*command, "pyproject.toml"], check=True, cwd=ROOT, env=environment)
    lock = ROOT / "requirements.lock"
    lines = [line for line in lock.read_text().splitlines(keepends=True) if line != HEADER]
    lock.write_text("".join([HEADER, *lines]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
