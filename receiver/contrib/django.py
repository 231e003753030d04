"""Django: a webhook endpoint is a view, sync or async as its handler is.

::

    @webhook(Verifier.shopify(SECRET), gate)
    def orders(message):
        ...

    urlpatterns = [path("hooks/shopify", orders)]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeAlias, Unpack

from django.db.transaction import non_atomic_requests
from django.http import HttpRequest, HttpResponse
from django.utils.encoding import escape_uri_path
from django.views.decorators.csrf import csrf_exempt

from receiver.answer import Answer, refusal
from receiver.drive import is_async
from receiver.errors import VerificationError
from receiver.gate import Gate
from receiver.handle import Receiver
from receiver.request import Headers, Request, read_capped
from receiver.settings import Handler, Settings
from receiver.verify import Verifier

__all__ = ["webhook"]

View: TypeAlias = Callable[..., Any]


def webhook(
    verifier: Verifier, gate: Gate | None = None, **settings: Unpack[Settings]
) -> Callable[[Handler], View]:
    """Make a handler of messages a view; `settings` are those of `receiver.handle.Receiver`.

    The handler gets the message and what the URL pattern captures. The view needs no CSRF token.
    It is outside ``ATOMIC_REQUESTS``, whose commit would come after the claim is confirmed, and
    could fail then: use ``transaction.atomic`` in the handler.

    Raises `ConfigurationError` for a memory that is too short.
    """

    def decorate(handler: Handler) -> View:
        receiver = Receiver(verifier, gate, handler, **settings)
        if is_async(handler):

            @wraps(handler)
            async def async_view(
                django_request: HttpRequest, *captured: object, **named: object
            ) -> HttpResponse:
                request = _read(django_request, receiver.max_body)
                if isinstance(request, Answer):
                    return _response(request)
                return _response(await receiver.process_async(request, *captured, **named))

            return _exempt(async_view)

        @wraps(handler)
        def view(django_request: HttpRequest, *captured: object, **named: object) -> HttpResponse:
            request = _read(django_request, receiver.max_body)
            if isinstance(request, Answer):
                return _response(request)
            return _response(receiver.process(request, *captured, **named))

        return _exempt(view)

    return decorate


def _exempt(view: View) -> View:
    exempt: View = non_atomic_requests(csrf_exempt(view))
    return exempt


def _read(request: HttpRequest, limit: int) -> Request | Answer:
    """The request, or the answer that refuses it. Not `request.body`, which has another limit."""
    try:
        headers = Headers(request.headers)
        body = read_capped(request, limit, headers.get("content-length"))
        return Request(headers, body, method=request.method or "", url=_url(request, headers))
    except VerificationError as error:
        return refusal(error)


def _url(request: HttpRequest, headers: Headers) -> str:
    query = request.META.get("QUERY_STRING", "")
    path = escape_uri_path(request.path)
    host = headers.get("host") or ""
    return f"{request.scheme}://{host}{path}" + (f"?{query}" if query else "")


def _response(answer: Answer) -> HttpResponse:
    response = HttpResponse(answer.body, status=answer.status)
    del response["content-type"]
    for name, value in answer.all_headers():
        response[name] = value
    return response
