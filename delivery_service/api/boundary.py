"""The outermost layer: request ids, the limit of a body's size, and faults of our own.

Plain ASGI, so that a body is counted while it is read and nothing is buffered on the way.
"""

from __future__ import annotations

import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from delivery_service.api.problems import REQUEST_ID, Problem, render
from wire.ids import new_id

logger = logging.getLogger(__name__)

SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
)


class Boundary:
    """Middleware around the API. ``max_body_bytes``: the largest body of any request."""

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self._app = app
        self._limit = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = new_id("req")
        scope[REQUEST_ID] = request_id
        started = False

        async def send_marked(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
                present = {name for name, _ in headers}
                headers += [pair for pair in SECURITY_HEADERS if pair[0] not in present]
                message = {**message, "headers": headers}
            await send(message)

        try:
            self._check_length(scope)
            await self._app(scope, self._counted(receive), send_marked)
        except Problem as problem:
            await render(problem, request_id)(scope, receive, send_marked)
        except Exception:
            logger.exception("request %s failed", request_id)
            if started:
                raise
            await render(_FAULT, request_id)(scope, receive, send_marked)

    def _check_length(self, scope: Scope) -> None:
        for name, value in scope["headers"]:
            is_length = name == b"content-length" and value.isdigit()
            if is_length and int(value[:20]) > self._limit:
                raise self._too_large()

    def _counted(self, receive: Receive) -> Receive:
        size = 0

        async def receive_counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._limit:
                raise self._too_large()
            return message

        return receive_counted

    def _too_large(self) -> Problem:
        # The rest of the body is not read, so the connection can't be used again.
        return Problem(
            413,
            "too-large",
            f"The body has more than {self._limit} bytes (the setting max_body_bytes, and 16 KiB"
            " around it).",
            headers={"connection": "close"},
        )


_FAULT = Problem(500, "internal", "The service failed; its log tells more under this request's id.")
