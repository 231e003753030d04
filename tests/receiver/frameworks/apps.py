"""The same endpoint in every framework, behind a real server on loopback."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import django
import uvicorn
from django.conf import settings as django_settings
from werkzeug.serving import make_server

from receiver.gate import Gate
from receiver.verify import Verifier

PATH = "/hooks/<secret>"
Handler = Callable[..., Any]
DEADLINE = 10.0


def asynchronous(handler: Handler) -> Handler:
    async def async_handler(*arguments: Any, **named: Any) -> Any:
        await asyncio.sleep(0)
        return handler(*arguments, **named)

    return async_handler


def starlette_app(verifier: Verifier, gate: Gate, handler: Handler, **settings: Any) -> Any:
    from starlette.applications import Starlette
    from starlette.routing import Route

    from receiver.contrib.asgi import webhook

    return Starlette(routes=[Route("/hooks/{name}", webhook(verifier, gate, **settings)(handler))])


def fastapi_app(verifier: Verifier, gate: Gate, handler: Handler, **settings: Any) -> Any:
    from fastapi import FastAPI

    from receiver.contrib.asgi import webhook

    app = FastAPI()
    app.add_route("/hooks/{name}", webhook(verifier, gate, **settings)(handler))
    return app


def flask_app(verifier: Verifier, gate: Gate, handler: Handler, **settings: Any) -> Any:
    from flask import Flask

    from receiver.contrib.flask import webhook

    app = Flask("receiver-test")
    view = webhook(verifier, gate, **settings)(handler)
    app.add_url_rule("/hooks/<name>", "hook", view, methods=["GET", "POST"])
    return app


def configure_django() -> None:
    if not django_settings.configured:
        django_settings.configure(
            ALLOWED_HOSTS=["127.0.0.1"],
            ROOT_URLCONF="tests.receiver.frameworks.urls",
            MIDDLEWARE=["django.middleware.csrf.CsrfViewMiddleware"],
            SECRET_KEY="only-for-tests",
            # Smaller than the bodies sent: it must not get in the way of max_body.
            DATA_UPLOAD_MAX_MEMORY_SIZE=10,
        )
        django.setup()


def django_views(verifier: Verifier, gate: Gate, handler: Handler, **settings: Any) -> None:
    configure_django()
    from django.urls import clear_url_caches, path

    from receiver.contrib.django import webhook
    from tests.receiver.frameworks import urls

    view = webhook(verifier, gate, **settings)(handler)
    urls.urlpatterns[:] = [path("hooks/<name>", view)]
    clear_url_caches()


def django_wsgi(*arguments: Any, **settings: Any) -> Any:
    django_views(*arguments, **settings)
    from django.core.wsgi import get_wsgi_application

    return get_wsgi_application()


def django_asgi(*arguments: Any, **settings: Any) -> Any:
    django_views(*arguments, **settings)
    from django.core.asgi import get_asgi_application

    return get_asgi_application()


ASGI = {"starlette": starlette_app, "fastapi": fastapi_app, "django-asgi": django_asgi}
WSGI = {"flask": flask_app, "django-wsgi": django_wsgi}


@contextmanager
def serve(name: str, *arguments: Any, **settings: Any) -> Iterator[str]:
    """Serve the endpoint in framework `name`; gives the server's address."""
    if name in ASGI:
        yield from serve_asgi(ASGI[name](*arguments, **settings))
    else:
        yield from serve_wsgi(WSGI[name](*arguments, **settings))


def serve_asgi(app: Any) -> Iterator[str]:
    config = uvicorn.Config(app, port=0, log_config=None, ws="none", lifespan="off", loop="asyncio")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    deadline = time.monotonic() + DEADLINE
    while not server.started:
        assert thread.is_alive()
        assert time.monotonic() < deadline, "the server did not start"
        time.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(DEADLINE)


def serve_wsgi(app: Any) -> Iterator[str]:
    server = make_server("127.0.0.1", 0, app, threaded=True)
    server.log = lambda *arguments: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join(DEADLINE)
        server.server_close()
