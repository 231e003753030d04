"""Every kind of store that the kit has, made from the URL of its server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import redis
import redis.asyncio
from sqlalchemy import create_engine, event
from sqlalchemy.engine import Engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from receiver.memory import MemoryStore
from receiver.redis import RedisStore
from receiver.setnx import SetNxStore
from receiver.sql import SqlStore
from receiver.store import Store

SYNC_SQL = ("sqlite", "postgresql", "mariadb")
ASYNC_SQL = ("sqlite_async", "postgresql_async")
ALL = ("memory", "redis", "redis_async", *SYNC_SQL, *ASYNC_SQL)


class RestLikeClient:
    """The three commands of a REST key-value service, whose values are text, over real Redis."""

    def __init__(self, url: str) -> None:
        self._redis = redis.Redis.from_url(url, decode_responses=True)

    def set(self, key: str, value: str, *, nx: bool = False, ex: int | None = None) -> object:
        """Set."""
        return self._redis.set(key, value, nx=nx, ex=ex)

    def get(self, key: str) -> object:
        """Get."""
        return self._redis.get(key)

    def delete(self, key: str) -> object:
        """Delete."""
        return self._redis.delete(key)

    def close(self) -> None:
        """Disconnect."""
        self._redis.close()


@asynccontextmanager
async def open_store(kind: str, url: str) -> AsyncIterator[Store]:
    """A store of that kind on an empty server or database."""
    if kind == "memory":
        yield MemoryStore()
    elif kind == "redis":
        with redis.Redis.from_url(url) as client:
            yield RedisStore(client)
    elif kind == "redis_async":
        async with redis.asyncio.Redis.from_url(url) as client:
            yield RedisStore(client)
    elif kind == "setnx":
        rest = RestLikeClient(url)
        yield SetNxStore(rest)
        rest.close()
    elif kind in ASYNC_SQL:
        engine = create_async_engine(url, **_sizes(url))
        store = SqlStore(engine)
        await store.create_table()
        yield store
        await engine.dispose()
    else:
        sync = sync_engine(url)
        store = SqlStore(sync)
        store.create_table().run()
        yield store
        sync.dispose()


def sync_engine(url: str, **options: Any) -> Engine:
    """An engine as an application would make it."""
    return create_engine(url, **{**_sizes(url), **options})


def _sizes(url: str) -> dict[str, Any]:
    if url.startswith("sqlite"):
        return {"connect_args": {"timeout": 30}}
    return {"pool_size": 10, "max_overflow": 50}


def statements_of(engine: Engine) -> list[str]:
    """A list that fills with what the engine executes from now on."""
    seen: list[str] = []

    @event.listens_for(engine, "before_cursor_execute")
    def _see(_c: object, _cursor: object, statement: str, *_rest: object) -> None:
        seen.append(statement)

    return seen


Factory = Callable[[str], str]
__all__ = ["ALL", "ASYNC_SQL", "SYNC_SQL", "NullPool", "open_store", "statements_of", "sync_engine"]
