"""Flask: a webhook endpoint is a view.

::

    @app.route("/hooks/github", methods=["POST"])
    @webhook(Verifier.github(SECRET), gate)
    def github(message):
        ...
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeAlias, Unpack

import flask
from werkzeug.exceptions import RequestEntityTooLarge

from receiver.answer import Answer, refusal
from receiver.drive import is_async
from receiver.errors import TooLargeError, VerificationError
from receiver.gate import Gate
from receiver.handle import Receiver
from receiver.request import Request
from receiver.settings import Handler, Settings
from receiver.verify import Verifier

__all__ = ["webhook"]

View: TypeAlias = Callable[..., Any]


def webhook(
    verifier: Verifier, gate: Gate | None = None, **settings: Unpack[Settings]
) -> Callable[[Handler], View]:
    """Make a handler of messages a view; `settings` are those of `receiver.handle.Receiver`.

    The handler gets the message and, by name, what the rule captures; what it returns may be
    whatever a view may return. An async handler makes an async view.

    Raises `ConfigurationError` for a memory that is too short.
    """

    def decorate(handler: Handler) -> View:
        if is_async(handler):
            receiver = Receiver(verifier, gate, handler, **settings)

            @wraps(handler)
            async def async_view(**captured: object) -> flask.Response:
                request = _read(receiver.max_body)
                if isinstance(request, Answer):
                    return _response(request)
                return _response(await receiver.process_async(request, **captured))

            return async_view

        receiver = Receiver(verifier, gate, _with_tuples(handler), **settings)

        @wraps(handler)
        def view(**captured: object) -> flask.Response:
            request = _read(receiver.max_body)
            if isinstance(request, Answer):
                return _response(request)
            return _response(receiver.process(request, **captured))

        return view

    return decorate


def _with_tuples(handler: Handler) -> Handler:
    """`handler`, with the tuples that mean something to Flask only, such as ``("", 204)``."""

    @wraps(handler)
    def returning(*arguments: object, **named: object) -> object:
        result = handler(*arguments, **named)
        return flask.make_response(result) if isinstance(result, tuple) else result

    return returning


def _read(limit: int) -> Request | Answer:
    """The current request, or the answer that refuses it."""
    request = flask.request
    own = request.max_content_length
    limit = limit if own is None else min(own, limit)
    # One more, since werkzeug cuts a chunked body off at the limit without a word.
    request.max_content_length = limit + 1
    try:
        # Cached, so that whoever asks Flask for the data later gets the same bytes.
        body = request.get_data()
        if len(body) > limit:
            raise TooLargeError(limit)
        return Request(request.headers.to_wsgi_list(), body, method=request.method, url=_url())
    except RequestEntityTooLarge:
        return refusal(TooLargeError(limit))
    except VerificationError as error:
        return refusal(error)


def _url() -> str:
    environ = flask.request.environ
    raw = environ.get("REQUEST_URI") or environ.get("RAW_URI")
    if not raw or not raw.startswith("/"):
        return flask.request.url
    return f"{flask.request.scheme}://{flask.request.host}{raw}"


def _response(answer: Answer) -> flask.Response:
    response = flask.Response(answer.body, answer.status)
    response.headers.pop("content-type", None)
    for name, value in answer.all_headers():
        response.headers[name] = value
    return response
