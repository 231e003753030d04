"""A real HTTP receiver on loopback: it records requests byte for byte and answers by a script.

The server speaks just enough HTTP/1.1 itself, because a library would tidy up what tests want to
see (the exact header list and body) and refuse what they want to send (broken answers).
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from types import TracebackType
from typing import Self

from tests.support.ports import HOST
from tests.support.waiting import DEADLINE, wait_until


@dataclass(frozen=True)
class Received:
    """One request as it arrived. ``headers`` keeps order, case and repeats."""

    method: str
    target: str
    headers: list[tuple[bytes, bytes]]
    body: bytes
    at: float
    """Arrival, in seconds of the monotonic clock."""
    peer: tuple[str, int]

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    def header(self, name: str) -> str | None:
        """The first value of a header, whatever the case of its name."""
        return next(iter(self.header_list(name)), None)

    def header_list(self, name: str) -> list[str]:
        """Every value of a header, in order."""
        wanted = name.lower().encode()
        return [value.decode("latin-1") for key, value in self.headers if key.lower() == wanted]


@dataclass(frozen=True)
class Answer:
    """What to answer. ``raw`` replaces the whole answer by these bytes and closes.

    ``delay`` is in seconds, before the first byte. ``hang`` never answers, until the client gives
    up. ``drip`` sends the answer one byte at a time with that many seconds between. ``close`` ends
    the connection after the answer.
    """

    status: int = 200
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    delay: float = 0.0
    hang: bool = False
    drip: float = 0.0
    raw: bytes | None = None
    close: bool = False

    def encode(self) -> bytes:
        if self.raw is not None:
            return self.raw
        try:
            reason = HTTPStatus(self.status).phrase
        except ValueError:
            reason = "Odd"
        lines = [f"HTTP/1.1 {self.status} {reason}"]
        names = {name.lower() for name, _ in self.headers}
        if not names & {"content-length", "transfer-encoding"}:
            lines.append(f"Content-Length: {len(self.body)}")
        lines += [f"{name}: {value}" for name, value in self.headers]
        if self.close:
            lines.append("Connection: close")
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + self.body


HANG = Answer(hang=True)
RESET = Answer(raw=b"")
"""Closes the connection without a byte of answer."""


def challenge_of(request: Received) -> str:
    """The text by which a receiver proves its ownership."""
    text: str = json.loads(request.body)["data"]["challenge"]
    return text


def echo_challenge(request: Received) -> Answer:
    """Prove ownership, with white space around it."""
    return Answer(body=f" {challenge_of(request)}\n".encode())


Script = Answer | Callable[[Received], Answer]


@dataclass
class _Path:
    script: list[Script] = field(default_factory=lambda: [Answer()])
    used: int = 0

    def next(self) -> Script:
        step = self.script[min(self.used, len(self.script) - 1)]
        self.used += 1
        return step


class Receiver:
    """Runs in a thread of its own, so it serves sync tests, async tests and subprocesses alike.

    Every path answers 200 until ``script`` says otherwise.
    """

    def __init__(self, *, host: str = HOST, tls: ssl.SSLContext | None = None) -> None:
        self.host = host
        self.port = 0
        self.connections = 0
        """How many connections were accepted so far."""
        self._tls = tls
        self._lock = threading.Lock()
        self._requests: list[Received] = []
        self._paths: dict[str, _Path] = defaultdict(_Path)
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="receiver", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._started.wait(10) or not self.port:
            raise RuntimeError(f"the receiver could not listen on {self.host}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def url(self, path: str = "/") -> str:
        scheme = "https" if self._tls else "http"
        return f"{scheme}://{self.host}:{self.port}{path}"

    def script(self, path: str, *answers: Script) -> None:
        """Answer the requests to ``path`` with these in turn; the last one stays.

        An answer may be a callable that takes the request; it runs in the receiver's thread.
        """
        if not answers:
            raise ValueError("script needs at least one answer")
        with self._lock:
            self._paths[path] = _Path(list(answers))

    @property
    def requests(self) -> list[Received]:
        """Every request received completely so far, in order of arrival."""
        with self._lock:
            return list(self._requests)

    def received(self, path: str) -> list[Received]:
        """The requests to one path (without its query)."""
        return [request for request in self.requests if request.path == path]

    def wait_for(
        self, count: int, path: str | None = None, *, deadline: float = DEADLINE
    ) -> list[Received]:
        """Wait until at least ``count`` requests have arrived, and return them."""

        def enough() -> list[Received] | None:
            found = self.requests if path is None else self.received(path)
            return found if len(found) >= count else None

        what = f"{count} requests at {path or 'the receiver'}"
        return wait_until(enough, deadline=deadline, what=what) or []

    def clear(self) -> None:
        """Forget the requests and the scripts."""
        with self._lock:
            self._requests.clear()
            self._paths.clear()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._started.set()
            self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(
            self._connection, self.host, 0, ssl=self._tls, backlog=1024
        )
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stop.wait()
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while (request := await _read_request(reader, writer)) is not None:
                with self._lock:
                    self._requests.append(request)
                    step = self._paths[request.path].next()
                answer = step if isinstance(step, Answer) else step(request)
                await _send(answer, reader, writer)
                if answer.close or answer.raw is not None:
                    break
        except (OSError, asyncio.IncompleteReadError):
            # The client went away, which is its right.
            pass
        except asyncio.CancelledError:
            # The receiver is stopping. asyncio's stream code logs a cancelled handler as an error.
            pass
        finally:
            writer.close()
            with suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()


async def _send(answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    if answer.hang:
        # Nothing more is expected, so this returns when the client closes.
        await reader.read(1)
        raise ConnectionResetError
    if answer.delay:
        await asyncio.sleep(answer.delay)
    data = answer.encode()
    if answer.drip:
        for index in range(len(data)):
            writer.write(data[index : index + 1])
            await writer.drain()
            await asyncio.sleep(answer.drip)
        return
    writer.write(data)
    await writer.drain()


async def _read_request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> Received | None:
    first = await reader.readline()
    if not first:
        return None
    method, target, _ = first.decode("latin-1").split(" ", 2)
    headers: list[tuple[bytes, bytes]] = []
    while (line := await reader.readline()) not in {b"\r\n", b"\n", b""}:
        name, _, value = line.partition(b":")
        headers.append((name, value.strip()))
    body = await _read_body(reader, {name.lower(): value for name, value in headers})
    return Received(
        method, target, headers, body, time.monotonic(), writer.get_extra_info("peername")[:2]
    )


async def _read_body(reader: asyncio.StreamReader, headers: dict[bytes, bytes]) -> bytes:
    if headers.get(b"transfer-encoding", b"").lower() != b"chunked":
        return await reader.readexactly(int(headers.get(b"content-length", b"0")))
    chunks: list[bytes] = []
    while size := int((await reader.readline()).partition(b";")[0], 16):
        chunks.append(await reader.readexactly(size))
        await reader.readexactly(2)
    while (await reader.readline()).strip():
        pass
    return b"".join(chunks)
