"""The demo's receiver: a real HTTP server that verifies, deduplicates, and is unwell at first."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from wire.errors import VerificationError
from wire.signature import verify

LOOPBACK = "127.0.0.1"

FLAKY = "/accounting"
"""Answers 500, then hangs, then accepts."""

STEADY = "/crm"
"""Accepts."""


@dataclass(frozen=True)
class Arrival:
    """A request, and what was done about it."""

    path: str
    delivery_id: str
    attempt: str
    body: bytes
    verified: bool


@dataclass
class Books:
    """What the receiver saw and did. ``effects`` counts, for each delivery id, how often its
    event was acted upon."""

    secrets: dict[str, str] = field(default_factory=dict)
    arrivals: list[Arrival] = field(default_factory=list)
    effects: Counter[str] = field(default_factory=Counter)
    released: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _tries: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    def take(self, path: str, headers: dict[str, str], body: bytes) -> int | None:
        """Judge a request; return the status to answer with, or None to hang."""
        with self._lock:
            try:
                verify(self.secrets[path], headers, body)
            except (KeyError, VerificationError):
                self._note(path, headers, body, verified=False)
                return 401
            self._note(path, headers, body, verified=True)
            delivery_id = headers["webhook-id"]
            self._tries[delivery_id] += 1
            if path == FLAKY and self._tries[delivery_id] == 1:
                return 500
            # Exactly one effect for each id, however often it comes.
            if not self.effects[delivery_id]:
                self.effects[delivery_id] += 1
            # The hang comes after the effect: the sender can't know, so it must send again.
            return None if path == FLAKY and self._tries[delivery_id] == 2 else 204

    def _note(self, path: str, headers: dict[str, str], body: bytes, *, verified: bool) -> None:
        self.arrivals.append(
            Arrival(
                path,
                headers.get("webhook-id", ""),
                headers.get("x-webhook-attempt", ""),
                body,
                verified,
            )
        )


@contextmanager
def running(hang_seconds: float) -> Iterator[tuple[str, Books]]:
    """Run the receiver; give its URL and its books. A hang ends after ``hang_seconds``."""
    books = Books()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status = books.take(self.path, headers, body)
            if status is None:
                books.released.wait(hang_seconds)
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Print nothing: the table shows it all."""

    server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://{LOOPBACK}:{server.server_address[1]}", books
    finally:
        books.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
