"""The resolver: all answers judged, own time limit, one look-up for everybody."""

from __future__ import annotations

import asyncio
import threading
from ipaddress import ip_address, ip_network

import pytest

from delivery_service.net import resolver as module
from delivery_service.net.guard import BlockedUrl, GuardPolicy
from delivery_service.net.resolver import ResolutionError, Resolver, ThreadedLookup
from tests.net.receivers import until

DEFAULT = GuardPolicy()


def answering(*answers: str):
    async def lookup(host: str) -> list[str]:
        lookup.asked += 1
        return list(answers)

    lookup.asked = 0
    return lookup


@pytest.mark.parametrize(
    ("host", "answers"),
    [
        ("localtest.me", ["127.0.0.1"]),
        ("intranet.example", ["10.1.2.3"]),
        ("both.example", ["93.184.216.34", "192.168.1.1"]),
        ("six.example", ["2606:4700::1111", "fe80::1"]),
        ("scope.example", ["2606:4700::1111%2"]),
        ("mapped.example", ["::ffff:169.254.169.254"]),
        ("nat64.example", ["64:ff9b::7f00:1"]),
        ("nonsense.example", ["not-an-address"]),
    ],
)
async def test_e20_any_refused_answer_refuses_the_name(host, answers):
    lookup = answering(*answers)
    resolver = Resolver(DEFAULT, lookup=lookup)
    for _ in range(2):
        with pytest.raises(BlockedUrl):
            await resolver.resolve(host)
    assert lookup.asked == 2  # refusals are not remembered


async def test_good_answers_are_checked_deduplicated_and_remembered():
    now = 100.0
    lookup = answering("93.184.216.34", "2606:4700::1111", "93.184.216.34")
    resolver = Resolver(DEFAULT, lookup=lookup, cache_ttl=10.0, monotonic=lambda: now)
    expected = (ip_address("93.184.216.34"), ip_address("2606:4700::1111"))
    assert await resolver.resolve("h.example") == expected
    now = 109.9
    assert await resolver.resolve("h.example") == expected
    assert lookup.asked == 1
    now = 110.0
    assert await resolver.resolve("h.example") == expected
    assert lookup.asked == 2


def test_cache_is_short():
    with pytest.raises(ValueError, match="cache_ttl"):
        Resolver(DEFAULT, lookup=answering(), cache_ttl=31)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(-2, "Name or service not known"), "Name or service not known"),
        (OSError("odd"), "odd"),
        (UnicodeError("label too long"), "label too long"),
    ],
)
async def test_no_answer_is_a_resolution_error(error, text):
    async def lookup(host):
        raise error

    with pytest.raises(ResolutionError, match=text):
        await Resolver(DEFAULT, lookup=lookup).resolve("h.example")
    with pytest.raises(ResolutionError, match="no address"):
        await Resolver(DEFAULT, lookup=answering()).resolve("h.example")


async def test_slow_look_up_is_given_up_and_not_asked_twice_at_once():
    asked = 0

    async def lookup(host):
        nonlocal asked
        asked += 1
        await asyncio.sleep(3600)

    resolver = Resolver(DEFAULT, lookup=lookup, timeout=0.05)
    results = await asyncio.gather(
        *(resolver.resolve("h.example") for _ in range(20)), return_exceptions=True
    )
    assert asked == 1
    assert {type(result) for result in results} == {ResolutionError}
    await resolver.close()


async def test_one_who_gives_up_does_not_take_the_answer_from_the_others():
    go = asyncio.Event()

    async def lookup(host):
        await go.wait()
        return ["93.184.216.34"]

    resolver = Resolver(DEFAULT, lookup=lookup)
    first = asyncio.create_task(resolver.resolve("h.example"))
    second = asyncio.create_task(resolver.resolve("h.example"))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    go.set()
    assert await second == (ip_address("93.184.216.34"),)


async def test_threaded_look_ups_are_bounded_and_never_block_the_loop(monkeypatch):
    release = threading.Event()
    running = 0

    def getaddrinfo(host):
        nonlocal running
        running += 1
        release.wait(10)
        return ["93.184.216.34"]

    monkeypatch.setattr(module, "_getaddrinfo", getaddrinfo)
    lookup = ThreadedLookup(max_threads=3)
    tasks = [asyncio.create_task(lookup(f"h{number}.example")) for number in range(6)]
    await until(lambda: running == 3)
    await asyncio.sleep(0)
    assert running == 3
    # Those who give up leave the thread its place: the bound holds.
    tasks[0].cancel()
    await asyncio.gather(tasks[0], return_exceptions=True)
    assert running == 3
    release.set()
    answers = await asyncio.wait_for(asyncio.gather(*tasks[1:]), 5)
    assert answers == [["93.184.216.34"]] * 5


async def test_threaded_look_up_asks_the_system():
    assert await ThreadedLookup()("127.0.0.1") == ["127.0.0.1"]
    policy = GuardPolicy(allowed_networks=(ip_network("127.0.0.0/8"), ip_network("::1/128")))
    assert all(address.is_loopback for address in await Resolver(policy).resolve("localhost"))
    with pytest.raises(BlockedUrl):
        await Resolver(DEFAULT).resolve("localhost")
