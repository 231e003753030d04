"""A fast HTTP receiver in a process of its own, so that what is measured is the sender.

``python -m bench.target --addresses N`` listens on 127.0.1.1 to 127.0.1.N, prints its port, and
answers every POST by its path: ``/ok`` at once, ``/slow/MS`` after a delay, ``/never`` not at all,
``/endless`` with a body that does not end. ``GET /stats`` tells how many POSTs came and when,
``GET /reset`` forgets them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any, cast

import uvloop

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
ENDLESS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNK = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
FIRST_ADDRESS = (127, 0, 1, 1)


class Stats:
    """What has been received."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.times: list[float] = []
        self.ids: list[bytes] = []
        self.addresses: list[str] = []

    def report(self) -> dict[str, Any]:
        return {
            "count": len(self.times),
            "first": self.times[0] if self.times else None,
            "last": self.times[-1] if self.times else None,
        }

    def details(self) -> dict[str, Any]:
        return {
            "times": self.times,
            "ids": [id_.decode() for id_ in self.ids],
            "addresses": self.addresses,
        }


class Receiver(asyncio.Protocol):
    """Just enough HTTP: finds the end of each request and answers it."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats
        self._buffer = b""
        self._transport: asyncio.Transport
        self._address = ""
        self._writable = asyncio.Event()
        self._writable.set()
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are of no class that asyncio knows.
        self._transport = cast("asyncio.Transport", transport)
        self._address = transport.get_extra_info("sockname")[0]

    def connection_lost(self, exc: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        while (head_end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:head_end]
            length = 0
            at = head.lower().find(b"content-length:")
            if at >= 0:
                length = int(head[at + 15 :].split(b"\r\n", 1)[0])
            end = head_end + 4 + length
            if len(self._buffer) < end:
                return
            self._buffer = self._buffer[end:]
            self._answer(head)

    def _answer(self, head: bytes) -> None:
        method, path, _ = head.split(b" ", 2)
        if method == b"GET":
            self._control(path)
            return
        at = head.find(b"webhook-id: ")
        self._stats.times.append(time.time())
        self._stats.ids.append(head[at + 12 : at + 42])
        self._stats.addresses.append(self._address)
        if path.startswith(b"/slow/"):
            delay = int(path[6:]) / 1000
            asyncio.get_running_loop().call_later(delay, self._transport.write, OK)
        elif path == b"/endless":
            self._task = asyncio.get_running_loop().create_task(self._flood())
        elif path != b"/never":
            self._transport.write(OK)

    async def _flood(self) -> None:
        self._transport.write(ENDLESS)
        while not self._transport.is_closing():
            await self._writable.wait()
            self._transport.write(CHUNK)
            await asyncio.sleep(0)

    def _control(self, path: bytes) -> None:
        if path == b"/reset":
            self._stats.reset()
        body = json.dumps(
            self._stats.details() if path == b"/details" else self._stats.report()
        ).encode()
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )


def address(number: int) -> str:
    """The address of receiver ``number``, from 0."""
    a, b, c, d = FIRST_ADDRESS
    return f"{a}.{b}.{c + number // 200}.{d + number % 200}"


async def serve(addresses: int) -> None:
    """Listen until ended."""
    stats = Stats()
    loop = asyncio.get_running_loop()
    hosts: Sequence[str] = [address(number) for number in range(addresses)]
    first = await loop.create_server(lambda: Receiver(stats), hosts[0], 0, backlog=4096)
    port = first.sockets[0].getsockname()[1]
    for host in hosts[1:]:
        await loop.create_server(lambda: Receiver(stats), host, port, backlog=1024)
    print(port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--addresses", type=int, default=100)
    uvloop.run(serve(parser.parse_args().addresses))
