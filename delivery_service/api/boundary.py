"""The outermost layer: request ids, the limit of a body's size, and faults of our own.

Plain ASGI, so that a body is counted while it is read and nothing is buffered on the way.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from delivery_service.api.problems import EXTRA_HEADERS, REQUEST_ID, Problem, render
from wire.ids import new_id

logger = logging.getLogger(__name__)

SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
)


class Boundary:
    """Middleware around the API.

    ``max_body_bytes``: the largest body of a request; ``larger``: those of some paths.
    """

    def __init__(self, app: ASGIApp, max_body_bytes: int, larger: Mapping[str, int]) -> None:
        self._app = app
        self._limit = max_body_bytes
        self._larger = larger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = self._limit_of(scope)
        request_id = new_id("req")
        scope[REQUEST_ID] = request_id
        started = False

        async def send_marked(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
                headers += scope.get(EXTRA_HEADERS, ())
                present = {name for name, _ in headers}
                headers += [pair for pair in SECURITY_HEADERS if pair[0] not in present]
                message = {**message, "headers": headers}
            await send(message)

        try:
            _check_length(scope, limit)
            await self._app(scope, _counted(receive, limit), send_marked)
        except Problem as problem:
            await render(problem, request_id)(scope, receive, send_marked)
        except Exception:
            logger.exception("request %s failed", request_id)
            if started:
                raise
            await render(_FAULT, request_id)(scope, receive, send_marked)

    def _limit_of(self, scope: Scope) -> int:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        return self._larger.get(path, self._limit)


def _check_length(scope: Scope, limit: int) -> None:
    for name, value in scope["headers"]:
        is_length = name == b"content-length" and value.isdigit()
        if is_length and int(value[:20]) > limit:
            raise _too_large(limit)


def _counted(receive: Receive, limit: int) -> Receive:
    size = 0

    async def receive_counted() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > limit:
            raise _too_large(limit)
        return message

    return receive_counted


def _too_large(limit: int) -> Problem:
    # The rest of the body is not read, so the connection can't be used again.
    return Problem(
        413,
        "too-large",
        f"The body has more than {limit} bytes; the setting max_body_bytes limits an event.",
        headers={"connection": "close"},
    )


_FAULT = Problem(500, "internal", "The service failed; its log tells more under this request's id.")
