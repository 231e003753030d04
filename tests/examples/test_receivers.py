"""The receiver's examples, each as two server processes, over real HTTP.

The same signed payload 50 times at once has one effect; every answer is a 2xx or can be retried;
once more after success is a 2xx and changes nothing.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from sqlalchemy import create_engine, text

from tests.receiver.stores.conftest import mariadb  # noqa: F401 - fixture
from tests.support.ports import accepts, free_port
from tests.support.processes import Processes
from wire import generate_secret, sign

SECRET = generate_secret()
BODY = b'{"id":"evt_1","type":"invoice.paid","timestamp":"2026-11-29T10:00:00Z","data":{"cents":7}}'
META = {
    "object": "whatsapp_business_account",
    "entry": [
        {"changes": [{"value": {"messages": [{"id": "wamid.1"}, {"id": "wamid.2"}]}}]},
    ],
}
RETRYABLE = {409, 500, 503}
DJANGO = {"SHOPIFY_SECRET": "hush", "DJANGO_SECRET_KEY": "only for tests"}


def standard(name: str, body: bytes = BODY) -> httpx.Request:
    now = int(time.time())
    headers = {
        "webhook-id": name,
        "webhook-timestamp": str(now),
        "webhook-signature": sign(SECRET, name, now, body),
    }
    return httpx.Request("POST", "http://x", headers=headers, content=body)


def shopify(name: str) -> httpx.Request:
    body = b'{"id":820982911946154508}'
    signature = base64.b64encode(hmac.new(b"hush", body, hashlib.sha256).digest()).decode()
    headers = {
        "x-shopify-hmac-sha256": signature,
        "x-shopify-topic": "orders/create",
        "x-shopify-webhook-id": name,
    }
    return httpx.Request("POST", "http://x", headers=headers, content=body)


def relayed(content: Any) -> httpx.Request:
    body = json.dumps(content).encode()
    signature = "sha256=" + hmac.new(b"app secret", body, hashlib.sha256).hexdigest()
    return httpx.Request(
        "POST", "http://x", headers={"x-hub-signature-256": signature}, content=body
    )


def command(module: str, port: int) -> tuple[str, ...]:
    """How an example's documentation says that it is run."""
    if "flask" in module:
        return ("flask", "--app", module, "run", "--port", str(port))
    name = "application" if "django" in module else "app"
    return ("uvicorn", f"{module}:{name}", "--port", str(port), "--log-level", "warning")


@contextlib.contextmanager
def served(
    processes: Processes, module: str, path: str, env: dict[str, str], number: int = 2
) -> Iterator[list[str]]:
    """Processes of an example; gives the URL of its path at each."""
    settings = {"WEBHOOK_SECRET": SECRET, "APP_SECRET": "app secret", **DJANGO, **env}
    ports = [free_port() for _ in range(number)]
    started = [processes.python(*command(module, port), env=settings) for port in ports]
    for process, port in zip(started, ports, strict=True):
        process.wait_for(lambda port=port: accepts(port))
    yield [f"http://127.0.0.1:{port}{path}" for port in ports]


async def fire(urls: list[str], request: httpx.Request, number: int) -> list[httpx.Response]:
    """The same request `number` times at once, in turn at each process."""
    async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=60)) as client:
        return await asyncio.gather(
            *[
                client.post(urls[n % len(urls)], headers=request.headers, content=request.content)
                for n in range(number)
            ]
        )


async def until_accepted(urls: list[str], request: httpx.Request) -> list[httpx.Response]:
    """As the provider does it: again until there is a 2xx."""
    async with asyncio.timeout(60):
        while True:
            answers = await fire(urls, request, 2)
            if all(answer.is_success for answer in answers):
                return answers
            assert {answer.status_code for answer in answers} <= {200, 202, *RETRYABLE}
            await asyncio.sleep(0.05)


async def check(urls: list[str], request: httpx.Request, effects: Callable[[], int], one: int = 1):
    statuses = Counter(answer.status_code for answer in await fire(urls, request, 50))
    assert set(statuses) <= {200, 202, 409, 503}, statuses
    answers = await until_accepted(urls, request)
    async with asyncio.timeout(60):
        while effects() < one:  # noqa: ASYNC110 - it happens in another process
            await asyncio.sleep(0.05)
    assert effects() == one
    assert all(answer.is_success for answer in await fire(urls, request, 2))
    assert effects() == one
    return answers


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'example.sqlite3'}"
    if request.param == "mariadb":
        return request.getfixturevalue("mariadb").create_database()
    return request.getfixturevalue("postgresql_url").replace("+asyncpg", "+psycopg")


@contextlib.contextmanager
def counted(url: str, table: str, columns: str) -> Iterator[Callable[[], int]]:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE {table} ({columns})"))

    def count() -> int:
        with engine.connect() as connection:
            return int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())

    yield count
    engine.dispose()


async def test_kv_gate_fastapi(processes: Processes, redis_url: str) -> None:
    env = {"REDIS_URL": redis_url}
    with (
        redis.Redis.from_url(redis_url) as client,
        served(processes, "examples.kv_gate_fastapi", "/hooks/orders", env) as urls,
    ):
        await check(urls, standard("dlv_1"), lambda: client.llen("shipped"))


async def test_kv_gate_replays_missed_events_through_the_same_gate(
    processes: Processes, redis_url: str
) -> None:
    from tests.receiver.test_feed import Service

    service = Service([BODY, BODY])
    env = {"REDIS_URL": redis_url, "HOOKS_URL": service.url, "HOOKS_KEY": "key"}
    env["HOOKS_ENDPOINT"] = "ep_1"
    try:
        with (
            redis.Redis.from_url(redis_url) as client,
            served(processes, "examples.kv_gate_fastapi", "/hooks/orders", env) as urls,
        ):
            # The first of the missed two had arrived after all; only its answer was lost.
            await until_accepted(urls, standard("dlv_000"))
            replay = [url.replace("/hooks/orders", "/replay") for url in urls]
            (answer, _) = await fire(replay[:1] * 2, httpx.Request("POST", "http://x"), 2)
            assert answer.json()["failed"] == 0
            assert client.llen("shipped") == 2
            assert service.missed == {}
    finally:
        service.close()


async def test_ledger(processes: Processes, database: str) -> None:
    entries = "message VARCHAR(255), cents INTEGER, number INTEGER PRIMARY KEY "
    entries += {"sqlite": "", "mysql": "AUTO_INCREMENT", "mariadb": "AUTO_INCREMENT"}.get(
        database.partition(":")[0].partition("+")[0], "GENERATED ALWAYS AS IDENTITY"
    )
    with (
        counted(database, "entries", entries) as effects,
        served(processes, "examples.ledger", "/hooks", {"DATABASE_URL": database}) as urls,
    ):
        await check(urls, standard("dlv_1"), effects)


async def test_inbox_worker(processes: Processes, database: str) -> None:
    with (
        counted(database, "paid", "message VARCHAR(255)") as effects,
        served(processes, "examples.inbox_worker", "/hooks", {"DATABASE_URL": database}) as urls,
    ):
        await check(urls, standard("dlv_1"), effects)


async def test_idempotent_flask(processes: Processes, database: str) -> None:
    env = {"DATABASE_URL": database}
    with (
        counted(database, "charges", "message VARCHAR(255)") as effects,
        served(processes, "examples.idempotent_flask", "/hooks", env) as urls,
    ):
        answers = await check(urls, standard("dlv_1"), effects)
        assert len({answer.json()["receipt"] for answer in answers}) == 1
        nameless = standard("dlv_2")
        del nameless.headers["webhook-id"]
        assert (await fire(urls, nameless, 1))[0].status_code in {400, 401}


async def test_django_shop(processes: Processes, database: str) -> None:
    env = {"DATABASE_URL": database}
    with (
        counted(database, "orders", "number BIGINT, message VARCHAR(255)") as effects,
        served(processes, "examples.django_shop", "/hooks/shopify", env) as urls,
    ):
        await check(urls, shopify("b54557e4"), effects)
        forged = shopify("b54557e5")
        forged.headers["x-shopify-hmac-sha256"] = "AAAA"
        assert [answer.status_code for answer in await fire(urls, forged, 1)] == [401]
        assert effects() == 1


async def test_relay_receiver(processes: Processes, database: str) -> None:
    with (
        counted(database, "replies", "message VARCHAR(255)") as effects,
        served(processes, "examples.relay_receiver", "/hooks", {"DATABASE_URL": database}) as urls,
    ):
        await check(urls, relayed(META), effects, 2)
        regrouped = json.loads(json.dumps(META))
        messages = regrouped["entry"][0]["changes"][0]["value"]["messages"]
        messages[:] = [{"id": "wamid.2"}, {"id": "wamid.3"}]
        await check(urls, relayed(regrouped), effects, 3)


async def test_g12_what_was_answered_2xx_outlives_the_server(
    processes: Processes, redis_url: str, tmp_path: Path
) -> None:
    """Each example has its effect, or has stored the body, before it answers."""
    durable = {
        "kv_gate_fastapi": ("/hooks/orders", standard("dlv_1"), ""),
        "ledger": ("/hooks", standard("dlv_1"), "entries (number PRIMARY KEY, message, cents)"),
        "idempotent_flask": ("/hooks", standard("dlv_1"), "charges (message)"),
        "relay_receiver": ("/hooks", relayed(META), "replies (message)"),
        "django_shop": ("/hooks/shopify", shopify("b54557e4"), "orders (number, message)"),
        "inbox_worker": ("/hooks", standard("dlv_1"), "paid (message)"),
    }
    with contextlib.ExitStack() as stack:
        urls = {}
        for name, (path, _, table) in durable.items():
            file = tmp_path / f"{name}.sqlite3"
            env = {"DATABASE_URL": f"sqlite:///{file}", "REDIS_URL": redis_url}
            if table:
                with contextlib.closing(sqlite3.connect(file)) as connection:
                    connection.execute(f"CREATE TABLE {table}")
            started = served(processes, f"examples.{name}", path, env, 1)
            urls[name] = stack.enter_context(started)
        answers = {name: (await fire(urls[name], durable[name][1], 1))[0] for name in durable}
        processes.kill_all()
    assert all(answer.is_success for answer in answers.values()), answers
    with redis.Redis.from_url(redis_url) as client:
        assert client.lrange("shipped", 0, -1) == [BODY]
    for name, (_, _, table) in durable.items():
        if name == "inbox_worker":
            assert stored(tmp_path, name, "SELECT body FROM surehook_inbox") == [(BODY,)]
        elif table:
            effects = stored(tmp_path, name, f"SELECT message FROM {table.partition(' ')[0]}")
            assert len(effects) == (2 if name == "relay_receiver" else 1), name


def stored(folder: Path, name: str, query: str) -> list[Any]:
    with contextlib.closing(sqlite3.connect(folder / f"{name}.sqlite3")) as connection:
        return connection.execute(query).fetchall()
