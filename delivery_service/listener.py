"""A small HTTP listener for the metrics of a process that has no API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from delivery_service.settings import SettingsError

Render = Callable[[], tuple[bytes, str]]


@asynccontextmanager
async def listening(host: str, port: int, render: Render) -> AsyncIterator[int]:
    """Serve ``/metrics`` (what ``render`` returns: text and content type) and ``/healthz``.

    Gives the port, which matters for port 0. Raises `SettingsError` when it can't listen.
    """

    async def metrics(_request: web.Request) -> web.Response:
        body, content_type = render()
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def healthz(_request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/healthz", healthz)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as error:
            reason = error.strerror or error
            raise SettingsError(
                f"metrics_host, metrics_port: can't listen on {host} port {port}: {reason}"
            ) from None
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
