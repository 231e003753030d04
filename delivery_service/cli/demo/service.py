"""The demo's service: `surehook up` in a process of its own, and a client of its API."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

import delivery_service
from delivery_service.cli.failing import CommandError

ATTEMPT_TIMEOUT = 2.0
"""Seconds: short, so that the receiver's hang is."""

START_SECONDS = 60.0
STOP_SECONDS = 20.0


def _environment(folder: Path, database_url: str) -> dict[str, str]:
    """The variables of the service: the caller's own, without settings of another service."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SUREHOOK_")}
    package = Path(delivery_service.__file__).parents[1]
    path = os.pathsep.join(filter(None, [str(package), kept.get("PYTHONPATH", "")]))
    return {
        **kept,
        "PYTHONPATH": path,
        "SUREHOOK_CONFIG": str(folder / "none.toml"),
        "SUREHOOK_DATABASE_URL": database_url,
        "SUREHOOK_ALLOW_PRIVATE_NETWORKS": "true",
        "SUREHOOK_SCHEDULE": "fast",
        "SUREHOOK_ATTEMPT_TIMEOUT": str(ATTEMPT_TIMEOUT),
        "SUREHOOK_LEASE": "10",
        "SUREHOOK_POLL_INTERVAL": "0.2",
    }


@contextmanager
def running(folder: Path, database_url: str) -> Iterator[str]:
    """Run the service on a free port; give its URL. It is stopped as an operator would."""
    log = folder / "service.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "delivery_service.cli", "up", "--port", "0"],
            env=_environment(folder, database_url),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # Not in the terminal's group: Ctrl+C is the demo's to pass on.
            start_new_session=True,
        )
    try:
        yield _url(process, log)
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _url(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        found = re.search(r"^Listening on (http://\S+)\n", log.read_text(), re.MULTILINE)
        if found:
            return found[1]
        time.sleep(0.02)
    said = log.read_text(errors="replace").strip().splitlines()
    raise CommandError(f"the service did not start: {said[-1] if said else 'it said nothing'}")


class Api:
    """A client of the admin API."""

    def __init__(self, url: str, key: str) -> None:
        self._client = httpx.Client(
            base_url=f"{url}/v1",
            headers={"authorization": f"Bearer {key}"},
            timeout=STOP_SECONDS,
            trust_env=False,
        )

    def __enter__(self) -> Api:
        return self

    def __exit__(self, *_error: object) -> None:
        self._client.close()

    def add_endpoint(self, tenant: str, url: str) -> dict[str, Any]:
        """Register an endpoint; the answer has its secret."""
        return self._ask("POST", "/endpoints", json={"tenant": tenant, "url": url})

    def events(self, tenant: str) -> list[dict[str, Any]]:
        """The tenant's events."""
        return list(self._ask("GET", "/events", params={"tenant": tenant})["items"])

    def deliveries(self, tenant: str) -> list[dict[str, Any]]:
        """The tenant's deliveries, oldest first."""
        return list(self._ask("GET", "/deliveries", params={"tenant": tenant})["items"])[::-1]

    def attempts(self, delivery_id: str) -> list[dict[str, Any]]:
        """The attempts of a delivery, in order."""
        return list(self._ask("GET", f"/deliveries/{delivery_id}/attempts")["items"])

    def _ask(self, method: str, path: str, **given: Any) -> dict[str, Any]:
        try:
            answer = self._client.request(method, path, **given)
        except httpx.HTTPError as error:
            raise CommandError(f"{method} {path}: {str(error) or type(error).__name__}") from None
        if not answer.is_success:
            raise CommandError(f"{method} {path}: {answer.status_code} {answer.text}")
        return dict(answer.json())
