"""FastAPI, Starlette and every other ASGI framework: a webhook endpoint is an ASGI application.

::

    @webhook(Verifier.stripe(SECRET), gate)
    async def stripe(message):
        ...

    app.add_route("/hooks/stripe", stripe)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, TypeAlias, Unpack
from urllib.parse import quote

from receiver.answer import Answer, refusal
from receiver.errors import VerificationError
from receiver.gate import Gate
from receiver.handle import Receiver
from receiver.request import Headers, Request, read_capped_async
from receiver.settings import Handler, Settings
from receiver.verify import Verifier

__all__ = ["Webhook", "webhook"]

TOO_LARGE: Final = 413
Event: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Event]]
Send: TypeAlias = Callable[[Event], Awaitable[None]]


class Webhook:
    """One endpoint, as an ASGI application. Its ``receiver`` is the `Receiver` behind it.

    The handler gets the message and, by name, the route's path parameters. An async handler runs
    on the event loop, a plain one in a thread.
    """

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await _not_http(scope, receive, send)
            return
        answer = await self._answer(scope, receive)
        headers = [(n.encode("latin-1"), v.encode("latin-1")) for n, v in answer.all_headers()]
        if answer.status == TOO_LARGE and scope.get("http_version", "1.1").startswith("1"):
            # The rest of the body is not going to be read.
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    async def _answer(self, scope: Event, receive: Receive) -> Answer:
        try:
            headers = Headers(scope["headers"])
            length = headers.get("content-length")
            body = await read_capped_async(receive, self.receiver.max_body, length)
            url = _url(scope, headers)
            request = Request(headers, body, method=scope["method"], url=url)
        except VerificationError as error:
            return refusal(error)
        return await self.receiver.process_async(request, **scope.get("path_params", {}))


def webhook(
    verifier: Verifier, gate: Gate | None = None, **settings: Unpack[Settings]
) -> Callable[[Handler], Webhook]:
    """Make a handler of messages an endpoint; `settings` are those of `receiver.handle.Receiver`.

    Raises `ConfigurationError` for a memory that is too short.
    """
    return lambda handler: Webhook(Receiver(verifier, gate, handler, **settings))


def _url(scope: Event, headers: Headers) -> str:
    raw = scope.get("raw_path")
    path = raw.decode("latin-1") if raw else quote(scope["path"])
    query = scope.get("query_string", b"").decode("latin-1")
    host = headers.get("host") or ""
    return f"{scope.get('scheme', 'http')}://{host}{path}" + (f"?{query}" if query else "")


async def _not_http(scope: Event, receive: Receive, send: Send) -> None:
    """Started as an application of its own, the endpoint has nothing to set up."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1000})
        return
    while True:
        event = await receive()
        await send({"type": f"{event['type']}.complete"})
        if event["type"] == "lifespan.shutdown":
            return
