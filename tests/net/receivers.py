"""Receivers on real loopback sockets, most of them hostile."""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

GOOD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
GZIP_BOMB = gzip.compress(b"\0" * 30_000_000)


@dataclass
class Receiver:
    """What a listener saw."""

    host: str
    port: int
    connections: int = 0
    closed: int = 0
    requests: list[tuple[bytes, bytes]] = field(default_factory=list)
    server_names: list[str | None] = field(default_factory=list)

    def url(self, host: str = "hooks.example", path: str = "/in", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"


@asynccontextmanager
async def receiver(
    behaviour: Behaviour | bytes = GOOD,
    *,
    tls: ssl.SSLContext | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
) -> AsyncIterator[Receiver]:
    """Listen on loopback. Bytes as behaviour: read each request and answer with them."""
    seen = Receiver(host, port)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.connections += 1
        tasks.add(asyncio.current_task())
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError, ssl.SSLError):
            if isinstance(behaviour, bytes):
                while True:
                    seen.requests.append(await read_request(reader))
                    writer.write(behaviour)
                    await writer.drain()
            else:
                await behaviour(reader, writer)
        seen.closed += 1
        writer.transport.abort()

    if tls is not None:
        tls.sni_callback = lambda _, name, __: seen.server_names.append(name)
    listener = socket.create_server((host, port), backlog=1024)
    if behaviour is never_read:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    server = await asyncio.start_server(serve, sock=listener, ssl=tls)
    seen.port = server.sockets[0].getsockname()[1]
    try:
        yield seen
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    return head, await reader.readexactly(length)


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Wait until the condition holds, at most so many seconds."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 any condition
            await asyncio.sleep(0.005)


def after_request(*chunks: bytes, pause: float = 0.0, repeat: bool = False) -> Behaviour:
    """Read a request, send the chunks (the last one for ever with ``repeat``), then close."""

    async def behaviour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        for chunk in chunks:
            writer.write(chunk)
            await writer.drain()
            await asyncio.sleep(pause)
        while repeat:
            writer.write(chunks[-1])
            await writer.drain()
            await asyncio.sleep(pause)
        with suppress(OSError):
            writer.write_eof()
            await reader.read()

    return behaviour


async def silent_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    writer.close()


async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(65536):
        pass


async def never_read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.pause_reading()
    await asyncio.sleep(3600)


async def endless_headers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    writer.write(b"HTTP/1.1 200 OK\r\n")
    number = 0
    while True:
        writer.write(b"".join(b"x-%d: yyyyyyyy\r\n" % n for n in range(number, number + 500)))
        number += 500
        await writer.drain()
        await asyncio.sleep(0)


def body(data: bytes, *headers: bytes, status: bytes = b"200 OK") -> bytes:
    lines = [b"HTTP/1.1 " + status, b"content-length: %d" % len(data), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + data


CHUNKED = b"HTTP/1.1 %s\r\ntransfer-encoding: chunked\r\n\r\n"

# name: (behaviour, kinds accepted, deadline in seconds, body truncated). The deadline is long where
# it must not pass, even with 200 at once on a slow machine.
HOSTILE: dict[str, tuple[Behaviour | bytes, str, float, bool]] = {
    "drip headers": (
        after_request(b"HTTP/1.1 200 OK\r\nx: ", b"y", pause=0.05, repeat=True),
        "timeout",
        2.5,
        False,
    ),
    "drip status": (
        after_request(*(b"HTTP/1.1"[i : i + 1] for i in range(7)), b"", pause=0.2, repeat=True),
        "timeout",
        2.5,
        False,
    ),
    "drip body": (
        after_request(CHUNKED % b"200 OK" + b"1\r\nx\r\n", b"1\r\nx\r\n", pause=0.05, repeat=True),
        "delivered",
        2.5,
        True,
    ),
    "drip body of 500": (
        after_request(CHUNKED % b"500 Oh" + b"1\r\nx\r\n", b"1\r\nx\r\n", pause=0.05, repeat=True),
        "status",
        2.5,
        True,
    ),
    "endless headers": (endless_headers, "protocol", 10.0, False),
    "endless body": (
        after_request(CHUNKED % b"200 OK", b"400\r\n" + b"x" * 1024 + b"\r\n", repeat=True),
        "delivered",
        10.0,
        True,
    ),
    "endless body without framing": (
        after_request(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 1024, repeat=True),
        "delivered",
        10.0,
        True,
    ),
    "gzip bomb": (
        after_request(body(GZIP_BOMB, b"content-encoding: gzip")),
        "delivered",
        10.0,
        True,
    ),
    "bad utf-8 and nul": (body(b"\xff\xfe\x00\xc3"), "delivered", 10.0, False),
    "odd bytes in headers": (body(b"ok", b"x-odd: \xff\xfe \xc3\xa9"), "delivered", 10.0, False),
    "nul in a header": (body(b"ok", b"x-nul: a\x00b"), "protocol", 10.0, False),
    "broken chunking": (
        after_request(CHUNKED % b"200 OK" + b"5\r\nhello\r\nzz\r\n"),
        "delivered",
        10.0,
        True,
    ),
    "broken chunking of 500": (
        after_request(CHUNKED % b"500 Oh" + b"5\r\nhello\r\nzz\r\n"),
        "status",
        10.0,
        True,
    ),
    "body cut short": (
        after_request(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nabc"),
        "delivered",
        10.0,
        True,
    ),
    "informational flood": (
        after_request(b"HTTP/1.1 100 Continue\r\n\r\n" * 50, repeat=True),
        "protocol",
        10.0,
        False,
    ),
    "early hints flood": (
        after_request(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" * 50, repeat=True),
        "protocol",
        10.0,
        False,
    ),
    "switching protocols": (
        after_request(b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nab"),
        "protocol",
        10.0,
        False,
    ),
    "reset": (reset, "protocol", 10.0, False),
    "silent close": (silent_close, "protocol", 10.0, False),
    "redirect to metadata": (
        body(b"", b"location: http://169.254.169.254/latest/meta-data/", status=b"302 Found"),
        "redirect",
        10.0,
        False,
    ),
    "huge header": (
        after_request(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 1_000_000 + b"\r\n\r\n"),
        "protocol",
        10.0,
        False,
    ),
    "huge reason": (
        after_request(b"HTTP/1.1 200 " + b"y" * 1_000_000 + b"\r\n\r\n"),
        "protocol",
        10.0,
        False,
    ),
    "never answering": (never_answer, "timeout", 2.5, False),
    "never reading": (never_read, "timeout", 2.5, False),
    "another protocol": (after_request(b"SSH-2.0-OpenSSH_9.6\r\n"), "protocol", 10.0, False),
    "bad content-length": (
        after_request(b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n"),
        "protocol",
        10.0,
        False,
    ),
    "content-length and chunked": (
        after_request(
            b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
        ),
        "protocol or delivered",
        10.0,
        False,
    ),
}
