"""A worker that stops at a point of its work and waits to be killed: run as a program.

Arguments: kind of store, URL, way (``own`` or ``joined``), point. It prints the point and hangs;
at the point ``never`` it works to the end.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

import redis
from sqlalchemy import Engine, text

from receiver.gate import Claimed, Done, Gate
from receiver.redis import RedisStore
from receiver.setnx import SetNxStore
from receiver.sql import SqlStore
from tests.receiver.stores.kinds import RestLikeClient, sync_engine

KEY = "dlv_1"
LEASE = 1.0
POINTS = ("claimed", "effect")


def main(kind: str, url: str, way: str, point: str) -> None:
    """Take the message `KEY` through the gate, with one effect."""
    if way == "joined":
        engine = sync_engine(url)
        _joined(engine, point)
        engine.dispose()
    elif kind in {"redis", "setnx"}:
        with redis.Redis.from_url(url) as client, contextlib.closing(RestLikeClient(url)) as rest:
            store: Any = RedisStore(client) if kind == "redis" else SetNxStore(rest)
            _own(Gate(store, lease=LEASE), lambda: client.incr("effects"), point)
    else:
        engine = sync_engine(url)

        def effect() -> None:
            with engine.begin() as connection:
                connection.execute(text("INSERT INTO effects (n) VALUES (1)"))

        _own(Gate(SqlStore(engine), lease=LEASE), effect, point)
        engine.dispose()
    print("finished", flush=True)


def _own(gate: Gate, effect: Any, point: str) -> None:
    claim = gate.claim(KEY, wait=30).run()
    if isinstance(claim, Done):
        return
    assert isinstance(claim, Claimed), claim
    _reach("claimed", point)
    effect()
    _reach("effect", point)
    assert gate.complete(KEY, claim.token).run()


def _joined(engine: Engine, point: str) -> None:
    gate = Gate(SqlStore(engine))
    with engine.begin() as connection:
        claim = gate.within(connection).claim(KEY).run()
        if isinstance(claim, Done):
            return
        assert isinstance(claim, Claimed), claim
        _reach("claimed", point)
        connection.execute(text("INSERT INTO effects (n) VALUES (1)"))
        _reach("effect", point)


def _reach(here: str, point: str) -> None:
    if here == point:
        print(f"reached {here}", flush=True)
        time.sleep(3600)


@contextlib.contextmanager
def counted_effects(kind: str, url: str) -> Iterator[Any]:
    """Prepare the place of the effects, and give a function that counts them."""
    if kind in {"redis", "setnx"}:
        with redis.Redis.from_url(url) as client:
            yield lambda: int(client.get("effects") or 0)
        return
    engine = sync_engine(url)
    SqlStore(engine).create_table().run()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE effects (n INTEGER)"))

    def count() -> int:
        with engine.connect() as connection:
            return int(connection.execute(text("SELECT count(*) FROM effects")).scalar_one())

    yield count
    engine.dispose()


if __name__ == "__main__":
    main(*sys.argv[1:])
