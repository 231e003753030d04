"""The service inside other applications: real ones, which publish in transactions of their own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from http.client import HTTPConnection
from pathlib import Path
from types import ModuleType
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest
import uvicorn
from fastapi import FastAPI, Request, Response
from sqlalchemy import Column, Integer, MetaData, String, Table, func, select
from sqlalchemy.orm import Session
from starlette.applications import Starlette

from delivery_service.embedding import Embedded, EmbeddingError, WorkerThread, mount
from delivery_service.migrations import MigrationError
from delivery_service.sealing import sealer_for
from delivery_service.store import endpoints, keys
from delivery_service.worker.loop import Worker
from sender import publish, tables
from tests.support.processes import Processes
from tests.support.receiver import Answer, Received, Receiver
from tests.support.stored import ENCRYPTION_KEY, settings_for
from tests.support.tables import sync_engine
from tests.support.waiting import wait_until
from wire import generate_secret, verify

platform = MetaData()
invoices = Table(
    "invoices", platform, Column("id", Integer, primary_key=True), Column("to", String)
)


class Shop:
    """A platform: a database with a table of its own, beside Surehook's."""

    def __init__(self, url: str) -> None:
        self.settings = settings_for(url)
        self.engine = sync_engine(url)
        platform.create_all(self.engine)

    def sell(self, to: str) -> str:
        """Store an invoice and publish its event in one transaction; undone for nobody."""
        with Session(self.engine) as session, session.begin():
            session.execute(invoices.insert().values(to=to))
            published = publish(session, tenant="acme", type="invoice.paid", data={"to": to})
            if not to:
                raise ValueError("nobody to send it to")
        return published.event_id

    def register(self, receiver: Receiver) -> str:
        """Register an endpoint of the receiver; returns its secret."""
        secret = generate_secret()
        with self.engine.begin() as connection:
            endpoints.create(
                connection,
                {"tenant_id": "acme", "url": receiver.url("/hook")},
                sealer_for(self.settings).seal(secret),
            )
        return secret

    def key(self) -> str:
        with self.engine.begin() as connection:
            return keys.create(connection, name="test", scope=keys.Scope.ADMIN).key

    def count(self, table: Table, *conditions: Any) -> int:
        with self.engine.begin() as connection:
            query = select(func.count()).select_from(table).where(*conditions)
            return connection.execute(query).scalar_one()

    def delivered(self) -> int:
        return self.count(tables.deliveries, tables.deliveries.c.status == "delivered")


@pytest.fixture
def shop(database_url: str) -> Iterator[Shop]:
    made = Shop(database_url)
    yield made
    made.engine.dispose()


@pytest.fixture
def migrated(shop: Shop) -> Shop:
    async def migrate() -> None:
        async with Embedded(shop.settings, worker=False, migrate=True).lifespan():
            pass

    asyncio.run(migrate())
    return shop


class Client:
    """Calls an application over a real connection."""

    def __init__(self, port: int) -> None:
        self.port = port

    def __call__(self, method: str, path: str, body: Any = None, key: str = "") -> tuple[int, Any]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        is_json = (answer.getheader("content-type") or "").startswith("application/")
        return answer.status, json.loads(content) if is_json else content.decode()


@contextmanager
def asgi(app: Any) -> Iterator[Client]:
    """Serve an ASGI application by uvicorn, with its lifespan, in a thread."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, lifespan="on", log_config=None)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive(), what="the application is up")
        assert server.started
        yield Client(server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        thread.join()


class Quiet(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def wsgi(app: Any) -> Iterator[Client]:
    """Serve a WSGI application in a thread."""
    with make_server("127.0.0.1", 0, app, handler_class=Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield Client(server.server_port)
        finally:
            server.shutdown()
            thread.join()


def only(receiver: Receiver) -> Received:
    (request,) = receiver.wait_for(1)
    return request


def fastapi_shop(shop: Shop, **options: Any) -> FastAPI:
    """A FastAPI application with a lifespan and an own path, and the service mounted in it."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        yield {"currency": "EUR"}

    app = FastAPI(lifespan=lifespan)

    @app.post("/invoices/{to}")
    def sell(request: Request, to: str) -> dict[str, str]:
        event = shop.sell("" if to == "nobody" else to)
        webhooks.poke()
        return {"event": event, "currency": request.state.currency}

    @app.get("/metrics")
    def metrics() -> Response:
        body, content_type = webhooks.metrics()
        return Response(body, media_type=content_type)

    webhooks = mount(app, "/webhooks", shop.settings, **options)
    return app


def test_mounted_in_fastapi(shop: Shop, receiver: Receiver) -> None:
    app = fastapi_shop(shop, migrate=True)
    with asgi(app) as call:
        key = shop.key()
        endpoint = {"tenant": "acme", "url": receiver.url("/hook")}
        status, created = call("POST", "/webhooks/v1/endpoints", endpoint, key)
        assert status == 201, created
        status, answer = call("POST", "/invoices/ada")
        assert (status, answer["currency"]) == (200, "EUR")

        request = only(receiver)
        verified = verify([created["secret"]], dict(_headers(request)), request.body)
        assert json.loads(request.body)["id"] == answer["event"]
        wait_until(lambda: shop.delivered() == 1)
        status, delivery = call("GET", f"/webhooks/v1/deliveries/{verified.id}", key=key)
        assert (status, delivery["status"]) == (200, "delivered")

        # Rolled back: neither an invoice nor an event.
        assert call("POST", "/invoices/nobody")[0] == 500
        assert shop.count(invoices) == shop.count(tables.events) == 1

        assert call("GET", "/webhooks/healthz")[0] == 200
        assert call("GET", "/webhooks/readyz")[0] == 200
        assert call("GET", "/webhooks/.well-known/webhooks")[0] == 200
        assert call("GET", "/webhooks/v1/endpoints")[0] == 401
        assert "surehook_worker_up 1.0" in call("GET", "/metrics")[1]
        assert shop.count(tables.workers) == 1
    assert shop.count(tables.workers) == 0
    assert len(receiver.requests) == 1


def test_publishing_over_the_mounted_api_wakes_the_worker(
    migrated: Shop, receiver: Receiver
) -> None:
    """Nobody would look at the queue for an hour."""
    migrated.register(receiver)
    app = Starlette()
    mount(app, "/hooks", migrated.settings.model_copy(update={"poll_interval": timedelta(hours=1)}))
    with asgi(app) as call:
        event = {"tenant": "acme", "type": "invoice.paid", "data": {"n": 1}}
        status, answer = call("POST", "/hooks/v1/events", event, migrated.key())
        assert status == 202, answer
        only(receiver)


def test_an_application_can_start_again(migrated: Shop, receiver: Receiver) -> None:
    """As test clients do: the same application, several lifespans, each in a loop of its own."""
    migrated.register(receiver)
    app = fastapi_shop(migrated)
    for count in (1, 2, 3):
        with asgi(app) as call:
            assert call("POST", "/invoices/ada")[0] == 200
            receiver.wait_for(count)
        assert migrated.delivered() == count


def test_without_a_worker_it_only_publishes(migrated: Shop, receiver: Receiver) -> None:
    migrated.register(receiver)
    with asgi(fastapi_shop(migrated, worker=False)) as call:
        assert call("POST", "/invoices/ada")[0] == 200
        assert call("GET", "/webhooks/readyz")[0] == 503
        assert migrated.count(tables.workers) == 0
    assert receiver.requests == []
    assert migrated.count(tables.queue) == 1


async def test_a_database_that_is_not_migrated_stops_the_application(shop: Shop) -> None:
    app = fastapi_shop(shop)
    with pytest.raises(MigrationError, match="surehook migrate"):
        async with app.router.lifespan_context(app):
            pytest.fail("must not start")


async def test_what_is_in_flight_is_finished_at_the_end_of_the_lifespan(
    migrated: Shop, receiver: Receiver
) -> None:
    receiver.script("/hook", Answer(delay=0.5))
    migrated.register(receiver)
    embedded = Embedded(migrated.settings)
    async with embedded.lifespan():
        await asyncio.to_thread(migrated.sell, "ada")
        embedded.poke()
        await asyncio.to_thread(receiver.wait_for, 1)
    assert migrated.delivered() == 1


async def test_a_worker_that_fails_is_made_anew(
    migrated: Shop, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The application lives on, and so do its deliveries."""
    run, failures = Worker.run, [RuntimeError("injected")]

    async def fail_once(self: Worker) -> None:
        if failures:
            raise failures.pop()
        await run(self)

    monkeypatch.setattr(Worker, "run", fail_once)
    migrated.register(receiver)
    async with Embedded(migrated.settings).lifespan():
        await asyncio.to_thread(migrated.sell, "ada")
        await asyncio.to_thread(receiver.wait_for, 1)
    assert not failures


def test_worker_thread_beside_flask(migrated: Shop, receiver: Receiver) -> None:
    from flask import Flask

    app = Flask(__name__)
    webhooks = WorkerThread(migrated.settings)

    @app.post("/invoices/<to>")
    def sell(to: str) -> dict[str, str]:
        event = migrated.sell("" if to == "nobody" else to)
        webhooks.poke()
        return {"event": event}

    secret = migrated.register(receiver)
    with webhooks, wsgi(app) as call:
        status, answer = call("POST", "/invoices/ada")
        assert status == 200
        request = only(receiver)
        verify([secret], dict(_headers(request)), request.body)
        assert json.loads(request.body)["id"] == answer["event"]
        app.logger.disabled = True
        assert call("POST", "/invoices/nobody")[0] == 500
        wait_until(lambda: migrated.delivered() == 1)
    assert migrated.count(invoices) == migrated.count(tables.events) == 1
    assert migrated.count(tables.workers) == 0


def test_worker_thread_beside_django(migrated: Shop, receiver: Receiver) -> None:
    from django.conf import settings as django_settings
    from django.core.handlers.wsgi import WSGIHandler
    from django.http import HttpRequest, JsonResponse
    from django.test import override_settings
    from django.urls import path

    if not django_settings.configured:
        django_settings.configure(ALLOWED_HOSTS=["127.0.0.1"], SECRET_KEY="test")

    webhooks = WorkerThread(migrated.settings)

    def sell(_request: HttpRequest, to: str) -> JsonResponse:
        event = migrated.sell(to)
        webhooks.poke()
        return JsonResponse({"event": event})

    urls: Any = ModuleType("urls")
    urls.urlpatterns = [path("invoices/<to>", sell)]
    secret = migrated.register(receiver)
    with (
        override_settings(ROOT_URLCONF=urls, ALLOWED_HOSTS=["*"], MIDDLEWARE=[]),
        webhooks,
        wsgi(WSGIHandler()) as call,
    ):
        status, answer = call("POST", "/invoices/ada")
        assert status == 200
        request = only(receiver)
    verify([secret], dict(_headers(request)), request.body)
    assert json.loads(request.body)["id"] == answer["event"]
    assert migrated.delivered() == 1


def test_a_thread_can_be_stopped_and_started(migrated: Shop, receiver: Receiver) -> None:
    migrated.register(receiver)
    webhooks = WorkerThread(migrated.settings)
    assert webhooks.stop()
    for count in (1, 2):
        webhooks.start()
        webhooks.start()
        assert webhooks.running
        assert migrated.count(tables.workers) <= 1
        assert b"surehook_worker_up 1.0" in webhooks.metrics()[0]
        migrated.sell("ada")
        webhooks.poke()
        receiver.wait_for(count)
        assert webhooks.stop()
        assert not webhooks.running
        assert migrated.delivered() == count
    with pytest.raises(EmbeddingError, match="start it first"):
        webhooks.metrics()
    webhooks.poke()


def test_start_tells_what_prevents_it(shop: Shop) -> None:
    webhooks = WorkerThread(shop.settings)
    with pytest.raises(MigrationError, match="surehook migrate"):
        webhooks.start()
    assert not webhooks.running
    with WorkerThread(shop.settings, migrate=True) as migrating:
        assert migrating.running


def test_start_gives_up_on_a_database_that_does_not_answer() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql+asyncpg://nobody@127.0.0.1:{silent.getsockname()[1]}/none"
        webhooks = WorkerThread(settings_for(url))
        with pytest.raises(EmbeddingError, match="database_url"):
            webhooks.start(timeout=0.2)
        assert not webhooks.running
        started = [t for t in threading.enumerate() if t.name == "surehook-worker"]
        silent.close()
        for thread in started:
            thread.join(30)


def _headers(request: Received) -> Iterator[tuple[str, str]]:
    for name, value in request.headers:
        yield name.decode("latin-1"), value.decode("latin-1")


def _program(
    processes: Processes,
    shop: Shop,
    receiver: Receiver,
    folder: Path,
    kind: str,
    events: int = 1,
) -> tuple[int, str]:
    """Run an application that ends while attempts of all its events are in flight."""

    def answer(_request: Received) -> Answer:
        if len(receiver.requests) >= events:
            (folder / "arrived").touch()
        return Answer(delay=1.0)

    receiver.script("/hook", answer)
    shop.register(receiver)
    options = {
        "database_url": shop.settings.database_url,
        "encryption_keys": ENCRYPTION_KEY,
        "allow_private_networks": True,
    }
    program = processes.python(
        "tests.support.embedding_program", kind, json.dumps(options), cwd=folder
    )
    return program.wait(), program.output


def test_the_exit_of_the_interpreter_waits_for_what_is_in_flight(
    migrated: Shop, receiver: Receiver, processes: Processes, tmp_path: Path
) -> None:
    """The program neither stops its thread nor hangs."""
    code, output = _program(processes, migrated, receiver, tmp_path, "leave")
    assert code == 0, output
    assert "leaving" in output
    assert migrated.delivered() == 1, output
    assert migrated.count(tables.workers) == 0
    assert "Error" not in output, output


@pytest.mark.parametrize(("kind", "events"), [("fork-before", 2), ("fork-after", 1)])
def test_forked_processes_have_threads_of_their_own(
    migrated: Shop, receiver: Receiver, processes: Processes, tmp_path: Path, kind: str, events: int
) -> None:
    code, output = _program(processes, migrated, receiver, tmp_path, kind, events)
    assert code == 0, output
    assert len(receiver.requests) == migrated.delivered() == events, output
    assert migrated.count(tables.workers) == 0
    assert "Error" not in output, output
