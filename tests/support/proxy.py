"""A TCP proxy on loopback that does to connections what networks do."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

from tests.support.ports import HOST


class Proxy:
    """Forwards connections to ``port``, until told otherwise. Runs in a thread of its own."""

    def __init__(self, port: int) -> None:
        self.port = 0
        self._target = port
        self._loop = asyncio.new_event_loop()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._stop = asyncio.Event()
        self._links: set[_Link] = set()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._started.wait(10):
            raise RuntimeError("the proxy could not listen")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    @property
    def connections(self) -> int:
        """Connections that are open."""
        return len(self._links)

    def block(self) -> None:
        """Stop forwarding; bytes wait, and so do new connections. Nothing is closed."""
        self._call(self._flowing.clear)

    def unblock(self) -> None:
        """Forward again, first of all what has waited."""
        self._call(self._flowing.set)

    def drop(self) -> int:
        """Forget all connections without a word to either side, as a NAT or a firewall does; new
        ones work. Returns how many there were."""
        return self._call(lambda: self._end(_Link.forget))

    def cut(self) -> int:
        """Reset all connections; new ones work. Returns how many there were."""
        return self._call(lambda: self._end(_Link.reset))

    def _end(self, how: object) -> int:
        assert callable(how)
        links = list(self._links)
        for link in links:
            how(link)
        return len(links)

    def _call(self, work: object) -> int:
        assert callable(work)

        async def run() -> int:
            return work() or 0

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accept, HOST, 0, backlog=256)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stop.wait()
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._flowing.wait()
            onward = await asyncio.open_connection(HOST, self._target)
        except (OSError, asyncio.CancelledError):
            writer.close()
            return
        link = _Link(writer, onward[1])
        self._links.add(link)
        # A task that was cancelled here would be reported by asyncio's streams as an error.
        with suppress(asyncio.CancelledError):
            await asyncio.gather(
                self._forward(link, reader, onward[1]), self._forward(link, onward[0], writer)
            )
        self._links.discard(link)
        if not link.forgotten or self._stop.is_set():
            link.close()

    async def _forward(
        self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                await self._flowing.wait()
                if link.forgotten:
                    await self._stop.wait()
                    return
                writer.write(data)
                await writer.drain()
        if link.forgotten:
            await self._stop.wait()
        link.close()


class _Link:
    def __init__(self, *writers: asyncio.StreamWriter) -> None:
        self._writers = writers
        self.forgotten = False

    def forget(self) -> None:
        self.forgotten = True

    def reset(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def close(self) -> None:
        for writer in self._writers:
            writer.close()
