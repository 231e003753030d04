"""The API behind a real HTTP server on loopback, in a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
from types import TracebackType
from typing import Self

import uvicorn
from fastapi import FastAPI

from delivery_service.bootstrap import Service
from tests.support.ports import HOST
from tests.support.waiting import wait_until


class LiveApi:
    """Serves while it is entered; closes the service at the end."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.app: FastAPI = service.api()
        self._socket = socket.socket()
        self._socket.bind((HOST, 0))
        self.url = f"http://{HOST}:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(self.app, log_config=None, lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def _serve(self) -> None:
        await self._server.serve(sockets=[self._socket])
        await self._service.close()

    def __enter__(self) -> Self:
        self._thread.start()
        wait_until(lambda: self._server.started, what="the API listens")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.should_exit = True
        self._thread.join(20)
        self._socket.close()
        assert not self._thread.is_alive()
