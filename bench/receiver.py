"""What a first delivery and a duplicate cost at the gate, beside the bare commands.

Every contender does the same work in the same run, message by message in turns. Figures are
microseconds for one message: the lower quartile of 300, for what else the machine does only ever
adds, and it hits all of them alike. Yardsticks are what
can't be done without: on Redis one ``SET NX EX`` and one ``SET`` (a duplicate: one ``SET NX EX``),
in SQL INSERT + COMMIT and UPDATE + COMMIT (a duplicate: one INSERT + COMMIT), in the caller's
transaction one INSERT. PostgreSQL and SQLite run with fsync. ``bare_conflict`` shows, for
comparison only, a duplicate's INSERT that conflicts and so writes nothing. With ``idemkit`` and
``aws-lambda-powertools`` (and its ``boto3``) installed, they are measured, too.

Run it: ``python -m bench.receiver``.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import sqlite3
import statistics
import tempfile
import time
import uuid
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import psycopg
import redis
import redis.asyncio
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from receiver.gate import Claimed, Done, Gate
from receiver.redis import RedisStore
from receiver.sql import SqlStore
from tests.support.postgres import Postgres, running_postgres
from tests.support.redis import running_redis

SAMPLES, WARM_UP = 300, 20
TARGET = 1.5
ANSWER = b'{"ok":true}'
MARK = "0" * 64
WEEK = 604_800

_TABLE = "CREATE TABLE bare (k VARCHAR(255) PRIMARY KEY, state VARCHAR(8), token VARCHAR(32), "
_TABLE += "fingerprint VARCHAR(128), expires_at BIGINT, response {bytes})"

Operation = Callable[[str], Awaitable[object]]


class Contender(NamedTuple):
    """Something that handles a first delivery, and then a duplicate of it."""

    name: str
    first: Operation
    duplicate: Operation

    def operations(self) -> list[tuple[str, Operation]]:
        """By the name of what they do, in the order of a message's life."""
        return [("first", self.first), ("duplicate", self.duplicate)]


def run() -> dict[str, Any]:
    """All figures: ``{"figures", "yardstick", "ratio", "target", "holds"}``, in microseconds."""
    figures: dict[str, float] = {}
    asyncio.run(_measure_all(figures))
    yardstick = {name: value for name, value in figures.items() if ".bare" in name}
    ratio = {}
    for name, value in figures.items():
        area, who, what = name.split(".")
        bare = figures.get(f"{area}.bare.{what}")
        if who == "surehook" and bare:
            ratio[f"{area}.{what}"] = round(value / bare, 2)
    return {
        "figures": {name: value for name, value in figures.items() if name not in yardstick},
        "yardstick": yardstick,
        "ratio": ratio,
        "target": TARGET,
        "holds": all(value <= TARGET for value in ratio.values()),
    }


async def _measure_all(figures: dict[str, float]) -> None:
    with running_redis() as server:
        with redis.Redis.from_url(server.url) as client:
            await _measure("redis", _redis_sync(client, server.url), figures)
        async with redis.asyncio.Redis.from_url(server.url) as client_async:
            await _measure("redis_async", _redis_async(client_async), figures)
    with running_postgres(fsync=True) as postgres, contextlib.ExitStack() as stack:
        await _measure("postgresql", _postgres_own(postgres, stack), figures)
        await _measure("postgresql_joined", _postgres_joined(postgres, stack), figures)
        async with _postgres_async(postgres) as contenders:
            await _measure("postgresql_async", contenders, figures)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        await _measure("sqlite", _sqlite_own(Path(folder), stack), figures)


async def _measure(area: str, contenders: list[Contender], figures: dict[str, float]) -> None:
    times: dict[str, list[float]] = {}
    gc.collect()
    gc.disable()
    try:
        for turn in range(WARM_UP + SAMPLES):
            for place in range(len(contenders)):
                contender = contenders[(turn + place) % len(contenders)]
                key = uuid.uuid4().hex
                for what, operation in contender.operations():
                    begun = time.perf_counter()
                    await operation(key)
                    spent = (time.perf_counter() - begun) * 1e6
                    if turn >= WARM_UP:
                        times.setdefault(f"{area}.{contender.name}.{what}", []).append(spent)
    finally:
        gc.enable()
    for name, all_ in times.items():
        figures[name] = round(statistics.quantiles(all_, n=4)[0], 1)


def _redis_sync(client: redis.Redis, url: str) -> list[Contender]:
    async def first(key: str) -> None:
        client.set(f"bare:{key}", MARK, nx=True, ex=WEEK)
        client.set(f"bare:{key}", ANSWER, ex=WEEK)

    async def duplicate(key: str) -> None:
        client.set(f"bare:{key}", MARK, nx=True, ex=WEEK)

    contenders = [Contender("bare", first, duplicate), _gate(Gate(RedisStore(client)))]
    return contenders + _powertools(url)


def _redis_async(client: redis.asyncio.Redis) -> list[Contender]:
    async def first(key: str) -> None:
        await client.set(f"bare:{key}", MARK, nx=True, ex=WEEK)
        await client.set(f"bare:{key}", ANSWER, ex=WEEK)

    async def duplicate(key: str) -> None:
        await client.set(f"bare:{key}", MARK, nx=True, ex=WEEK)

    contenders = [Contender("bare", first, duplicate), _gate_async(Gate(RedisStore(client)))]
    with contextlib.suppress(ImportError):
        from idemkit.backends.redis import RedisBackend  # noqa: PLC0415 - optional

        contenders.append(_idemkit(RedisBackend(client, namespace="idemkit")))
    return contenders


_INSERT = "INSERT INTO bare (k, state, token, fingerprint, expires_at) VALUES "
_IGNORE = " ON CONFLICT (k) DO NOTHING"
_UPDATE = "UPDATE bare SET state = 'done', response = {} WHERE k = {} AND token = {}"


def _postgres_own(server: Postgres, stack: contextlib.ExitStack) -> list[Contender]:
    name = server.create_database()
    engine = create_engine(server.url(name, "psycopg"))
    stack.callback(engine.dispose)
    store = SqlStore(engine)
    store.create_table().run()
    url = server.url(name, "psycopg").replace("+psycopg", "")
    plain = stack.enter_context(psycopg.connect(url))
    plain.execute(_TABLE.format(bytes="BYTEA"))
    plain.commit()
    insert = _INSERT + "(%s, 'claimed', %s, %s, %s)" + _IGNORE
    update = _UPDATE.format("%s", "%s", "%s")

    async def first(key: str) -> None:
        plain.execute(insert, (key, key, MARK, WEEK))
        plain.commit()
        plain.execute(update, (ANSWER, key, key))
        plain.commit()

    async def duplicate(key: str) -> None:
        plain.execute(insert, (f"{key}+", key, MARK, WEEK))
        plain.commit()

    async def conflict(key: str) -> None:
        plain.execute(insert, (key, key, MARK, WEEK))
        plain.commit()

    single = stack.enter_context(psycopg.connect(url, autocommit=True))

    async def first_single(key: str) -> None:
        single.execute(insert, (key, key, MARK, WEEK))
        single.execute(update, (ANSWER, key, key))

    async def duplicate_single(key: str) -> None:
        single.execute(insert, (f"{key}+", key, MARK, WEEK))

    return [
        Contender("bare", first, duplicate),
        Contender("bare_autocommit", first_single, duplicate_single),
        Contender("bare_conflict", first, conflict),
        _gate(Gate(store)),
    ]


def _postgres_joined(server: Postgres, stack: contextlib.ExitStack) -> list[Contender]:
    """The caller's transaction: the first delivery's part of it, and the whole of a duplicate's."""
    name = server.create_database()
    engine = create_engine(server.url(name, "psycopg"))
    stack.callback(engine.dispose)
    store = SqlStore(engine)
    store.create_table().run()
    connection = stack.enter_context(engine.connect())
    connection.exec_driver_sql(_TABLE.format(bytes="BYTEA"))
    connection.commit()
    insert = _INSERT + "(%s, 'done', %s, %s, %s)" + _IGNORE
    gate = Gate(store)

    async def bare(key: str) -> None:
        connection.exec_driver_sql(insert, (key, key, MARK, WEEK))

    async def bare_transaction(key: str) -> None:
        connection.commit()
        connection.exec_driver_sql(insert, (f"{key}+", key, MARK, WEEK))
        connection.commit()

    async def first(key: str) -> None:
        joined = gate.within(connection)
        claim = joined.claim(key, MARK).run()
        assert isinstance(claim, Claimed)
        assert joined.complete(key, claim.token).run()

    async def duplicate(key: str) -> None:
        connection.commit()
        assert gate.within(connection).claim(key, MARK).run() == Done(None)
        connection.commit()

    return [Contender("bare", bare, bare_transaction), Contender("surehook", first, duplicate)]


@contextlib.asynccontextmanager
async def _postgres_async(server: Postgres) -> AsyncIterator[list[Contender]]:
    name = server.create_database()
    engine = create_async_engine(server.url(name))
    store = SqlStore(engine)
    await store.create_table()
    url = server.url(name).replace("+asyncpg", "")
    async with asyncpg.create_pool(url, min_size=1, max_size=4) as pool:
        plain = await pool.acquire()
        await plain.execute(_TABLE.format(bytes="BYTEA"))
        insert = _INSERT + "($1, 'claimed', $2, $3, $4)" + _IGNORE
        update = _UPDATE.format("$1", "$2", "$3")

        async def first(key: str) -> None:
            async with plain.transaction():
                await plain.execute(insert, key, key, MARK, WEEK)
            async with plain.transaction():
                await plain.execute(update, ANSWER, key, key)

        async def duplicate(key: str) -> None:
            async with plain.transaction():
                await plain.execute(insert, f"{key}+", key, MARK, WEEK)

        contenders = [Contender("bare", first, duplicate), _gate_async(Gate(store))]
        with contextlib.suppress(ImportError):
            from idemkit.backends.postgres import PostgresBackend, init_pg  # noqa: PLC0415

            await init_pg(url)
            contenders.append(_idemkit(PostgresBackend(pool)))
        yield contenders
        await pool.release(plain)
    await engine.dispose()


def _sqlite_own(folder: Path, stack: contextlib.ExitStack) -> list[Contender]:
    engine = create_engine(f"sqlite:///{folder / 'receipts.sqlite3'}")
    stack.callback(engine.dispose)
    store = SqlStore(engine)
    store.create_table().run()
    plain = stack.enter_context(contextlib.closing(sqlite3.connect(folder / "bare.sqlite3")))
    plain.execute(_TABLE.format(bytes="BLOB"))
    insert = _INSERT + "(?, 'claimed', ?, ?, ?)" + _IGNORE
    update = _UPDATE.format("?", "?", "?")

    async def first(key: str) -> None:
        plain.execute(insert, (key, key, MARK, WEEK))
        plain.commit()
        plain.execute(update, (ANSWER, key, key))
        plain.commit()

    async def duplicate(key: str) -> None:
        plain.execute(insert, (f"{key}+", key, MARK, WEEK))
        plain.commit()

    return [Contender("bare", first, duplicate), _gate(Gate(store))]


def _gate(gate: Gate) -> Contender:
    async def first(key: str) -> None:
        claim = gate.claim(key, MARK).run()
        assert isinstance(claim, Claimed)
        assert gate.complete(key, claim.token, ANSWER).run()

    async def duplicate(key: str) -> None:
        assert gate.claim(key, MARK).run() == Done(ANSWER)

    return Contender("surehook", first, duplicate)


def _gate_async(gate: Gate) -> Contender:
    async def first(key: str) -> None:
        claim = await gate.claim(key, MARK)
        assert isinstance(claim, Claimed)
        assert await gate.complete(key, claim.token, ANSWER)

    async def duplicate(key: str) -> None:
        assert await gate.claim(key, MARK) == Done(ANSWER)

    return Contender("surehook", first, duplicate)


def _idemkit(backend: Any) -> Contender:
    async def first(key: str) -> None:
        claim = await backend.claim(key, MARK, 1, 60)
        assert await backend.complete(key, claim.our_claim_token, 200, {}, ANSWER, WEEK)

    async def duplicate(key: str) -> None:
        claim = await backend.claim(key, MARK, 1, 60)
        assert claim.our_claim_token is None

    return Contender("idemkit", first, duplicate)


def _powertools(url: str) -> list[Contender]:
    try:
        from aws_lambda_powertools.utilities.idempotency import (  # noqa: PLC0415 - optional
            IdempotencyConfig,
            idempotent_function,
        )
        from aws_lambda_powertools.utilities.idempotency.persistence.redis import (  # noqa: PLC0415
            RedisCachePersistenceLayer,
        )
    except ImportError:
        return []
    warnings.filterwarnings("ignore", module="aws_lambda_powertools")  # it misses its Lambda
    layer = RedisCachePersistenceLayer(client=redis.Redis.from_url(url, decode_responses=True))

    @idempotent_function(
        data_keyword_argument="event",
        persistence_store=layer,
        config=IdempotencyConfig(expires_after_seconds=WEEK),
    )
    def handle(*, event: str) -> dict[str, bool]:
        return {"ok": bool(event)}

    async def either(key: str) -> None:
        assert handle(event=key) == {"ok": True}

    return [Contender("powertools", either, either)]


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
