"""Redis restarted, evicting, full, and its scripts forgotten."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio

from receiver.gate import Claimed, Done, Gate, GateError, InProgress
from receiver.redis import RedisStore
from tests.support.ports import free_port
from tests.support.redis import RedisServer, running_redis


def round_trips(client: redis.Redis, work: Callable[[], object]) -> dict[str, int]:
    """How often the client sent each command while `work` ran."""
    client.config_resetstat()
    work()
    stats = client.info("commandstats")
    return {
        name.removeprefix("cmdstat_"): stats[name]["calls"]
        for name in ("cmdstat_evalsha", "cmdstat_eval")
        if name in stats
    }


def test_each_operation_is_one_round_trip(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        gate = Gate(RedisStore(client))
        _cycle(gate, "warm")
        assert round_trips(client, lambda: gate.claim("a").run()) == {"evalsha": 1}
        assert round_trips(client, lambda: gate.claim("a").run()) == {"evalsha": 1}
        assert round_trips(client, lambda: _cycle(gate, "b")) == {"evalsha": 2}


def test_everything_about_a_message_is_under_one_key(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        gate = Gate(RedisStore(client, prefix="p:"), ttl=100, lease=10)
        _cycle(gate, "a")
        assert client.keys("*") == [b"p:receipt:a"]
        assert 90_000 < client.pttl("p:receipt:a") <= 100_000
        gate.claim("b").run()
        assert 100_000 < client.pttl("p:receipt:b") <= 110_000


def test_decoding_client_is_refused(redis_url: str) -> None:
    with (
        redis.Redis.from_url(redis_url, decode_responses=True) as client,
        pytest.raises(GateError, match="decode_responses=False"),
    ):
        RedisStore(client)


async def test_asynchronous_client_wants_await(redis_url: str) -> None:
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        gate = Gate(RedisStore(client))
        with pytest.raises(GateError, match="await the call"):
            gate.claim("a").run()
        assert isinstance(await gate.claim("a"), Claimed)


def test_forgotten_scripts_are_sent_again(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        gate = Gate(RedisStore(client))
        claim = gate.claim("a").run()
        assert isinstance(claim, Claimed)
        client.script_flush()
        assert gate.complete("a", claim.token, b"x").run()
        client.script_flush()
        assert gate.claim("a").run() == Done(b"x")


def test_restart_with_an_append_only_file_forgets_nothing(tmp_path: Path) -> None:
    port = free_port()
    with redis.Redis(port=port) as client:
        gate = Gate(RedisStore(client))
        with running_redis(port=port, persistent=tmp_path) as server:
            _cycle(gate, "done")
            held = gate.claim("held", lease=600).run()
            assert isinstance(held, Claimed)
            server.process.kill_alone()
        with running_redis(port=port, persistent=tmp_path):
            assert gate.claim("done").run() == Done(b"x")
            assert isinstance(gate.claim("held").run(), InProgress)
            assert gate.complete("held", held.token, b"y").run()
            assert gate.claim("held").run() == Done(b"y")


def test_restart_without_persistence_repeats_but_never_loses() -> None:
    port = free_port()
    with redis.Redis(port=port) as client:
        gate = Gate(RedisStore(client))
        with running_redis(port=port):
            _cycle(gate, "done")
            held = gate.claim("held").run()
            assert isinstance(held, Claimed)
        with pytest.raises(redis.ConnectionError):
            gate.claim("meanwhile").run()
        with running_redis(port=port):
            assert not gate.complete("held", held.token).run(), "the claim is not known any more"
            for key in ("done", "held", "meanwhile"):
                assert isinstance(gate.claim(key).run(), Claimed)


@pytest.fixture
def small_redis() -> Any:
    with running_redis() as server, redis.Redis(port=server.port) as client:
        client.config_set("maxmemory", int(client.info("memory")["used_memory"]) + 2_000_000)
        yield client


def test_eviction_repeats_but_never_loses(small_redis: redis.Redis) -> None:
    small_redis.config_set("maxmemory-policy", "allkeys-lru")
    gate = Gate(RedisStore(small_redis))
    for number in range(400):
        _cycle(gate, f"k{number}", b"x" * 20_000)
    assert small_redis.info("stats")["evicted_keys"] > 0
    again = [gate.claim(f"k{number}").run() for number in range(400)]
    assert all(isinstance(result, Claimed | Done) for result in again)
    assert any(isinstance(result, Claimed) for result in again)


def test_full_without_eviction_refuses_and_forgets_nothing(small_redis: redis.Redis) -> None:
    small_redis.config_set("maxmemory-policy", "noeviction")
    gate = Gate(RedisStore(small_redis))
    keys = (f"k{number}" for number in itertools.count())
    done: list[str] = []

    def fill() -> None:
        for key in keys:
            _cycle(gate, key, b"x" * 20_000)
            done.append(key)

    with pytest.raises(redis.ResponseError, match="maxmemory"):
        fill()
    small_redis.config_set("maxmemory", 0)
    assert len(done) > 10
    assert all(gate.claim(key).run() == Done(b"x" * 20_000) for key in done)
    refused = gate.claim(f"k{len(done)}").run()
    assert isinstance(refused, Claimed | InProgress), "to be tried again, not lost"


def test_dead_letter_lost_between_park_and_list_is_listed_later(redis_server: RedisServer) -> None:
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
        gate = Gate(RedisStore(client), max_failures=1)
        claim = gate.claim("a").run()
        assert isinstance(claim, Claimed)
        gate.release("a", claim.token, "boom").run()
        client.delete("surehook:dead")
        assert gate.dead_letters().run() == []
        gate.claim("a").run()
        (letter,) = gate.dead_letters().run()
        assert (letter.key, letter.error) == ("a", "boom")
        client.delete("surehook:receipt:a")
        assert gate.dead_letters().run() == [], "revived elsewhere"
        assert client.zcard("surehook:dead") == 0


def test_foreign_value_under_the_key_is_an_error_not_a_claim(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.set("surehook:receipt:a", "1")
        with pytest.raises(redis.ResponseError, match="not a receipt"):
            Gate(RedisStore(client)).claim("a").run()


def _cycle(gate: Gate, key: str, answer: bytes = b"x") -> None:
    claim = gate.claim(key).run()
    assert isinstance(claim, Claimed)
    assert gate.complete(key, claim.token, answer).run()
