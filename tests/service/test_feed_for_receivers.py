"""The receiver kit's `MissedEvents` against the service's own feed."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from delivery_service.store import events
from receiver.feed import Drained, FeedItem, MissedEvents
from receiver.gate import Claimed, Gate, fingerprint
from receiver.memory import MemoryStore
from receiver.pull import FeedError
from receiver.sql import SqlStore
from tests.service.caller import Api

RAW = "/v1/events/raw?tenant=acme&type=a.b"
BODIES = [b'{"n":1.10,"n":1E2}', b' {"a" : 1}\n', b"\xff\x00", b"", b"[" * 2_000 + b"]" * 2_000]


def client(api: Api) -> httpx.AsyncClient:
    """What a receiver has: the address and a key of the endpoint's tenant."""
    headers = {"authorization": f"Bearer {api.keys['tenant']}"}
    transport = httpx.ASGITransport(api.app)
    return httpx.AsyncClient(base_url="http://hooks.example", transport=transport, headers=headers)


async def publish_bodies(api: Api) -> list[str]:
    """Publish each of the bodies as it is; gives the ids of the deliveries."""
    done = [
        await api.ok("POST", RAW, content=body, headers={"content-type": "application/json"})
        for body in BODIES
    ]
    return [published["deliveries"][0] for published in done]


async def test_every_missed_event_comes_with_its_exact_bytes(api: Api) -> None:
    endpoint = await api.endpoint()
    wanted = await publish_bodies(api)
    async with client(api) as http:
        feed = MissedEvents(http, endpoint["id"], scope="s:", limit=2)
        items = [item async for item in feed]
        assert [item.body for item in items] == BODIES
        assert [item.id for item in items] == wanted
        assert [item.key for item in items] == [f"s:{name}" for name in wanted]
        assert {item.type for item in items} == {"a.b"}
        assert {item.attempt for item in items} == {0}
        later = MissedEvents(http, endpoint["id"], after=feed.position, limit=2)
        assert [item.id async for item in later] == wanted[4:]
        full = MissedEvents(http, endpoint["id"])
        assert len([item async for item in full]) == len(BODIES)


async def test_what_is_drained_is_acknowledged_and_passes_the_gate_of_live_deliveries(
    api: Api,
) -> None:
    endpoint = await api.endpoint()
    wanted = await publish_bodies(api)
    gate, handled = Gate(MemoryStore()), list[str]()
    live = await gate.claim(wanted[1], fingerprint(BODIES[1]))
    assert isinstance(live, Claimed)
    await gate.complete(wanted[1], live.token)

    async def handle(item: FeedItem) -> None:
        if item.id == wanted[2] and len(handled) < len(wanted) - 2:
            raise ValueError("the first time")
        handled.append(item.id)

    async with client(api) as http:
        first = await MissedEvents(http, endpoint["id"], limit=2).drain(gate, handle)
        assert first == Drained(handled=3, duplicates=1, failed=1)
        left = await api.ok("GET", f"/v1/endpoints/{endpoint['id']}/feed?undelivered=true")
        assert [item["delivery"] for item in left["items"]] == [wanted[2]]
        second = await MissedEvents(http, endpoint["id"]).drain(gate, handle)
        assert second == Drained(handled=1)
        assert await MissedEvents(http, endpoint["id"]).drain(gate, handle) == Drained()
    assert sorted(handled) == sorted({*wanted} - {wanted[1]})
    shown = await api.ok("GET", f"/v1/deliveries/{wanted[0]}")
    assert (shown["status"], shown["reason"]) == ("delivered", "pulled")


async def test_an_event_whose_body_was_deleted_is_not_in_the_feed(api: Api) -> None:
    endpoint = await api.endpoint()
    await api.ok("POST", f"/v1/endpoints/{endpoint['id']}/disable")
    event, _ = await api.publish(), await api.publish()
    assert await api.database.write(events.delete_body, event["id"], api.clock.now())
    async with client(api) as http:
        assert event["id"] not in [
            item.event_id async for item in MissedEvents(http, endpoint["id"])
        ]
        assert len([item async for item in MissedEvents(http, endpoint["id"])]) == 1


async def test_a_key_of_another_tenant_reads_nothing(sqlite_api: Api) -> None:
    theirs = await sqlite_api.endpoint("globex")
    await sqlite_api.publish("globex")
    async with client(sqlite_api) as http:
        with pytest.raises(FeedError, match="answered 404"):
            [item async for item in MissedEvents(http, theirs["id"], retries=0)]


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_drained_in_a_transaction_effect_and_claim_commit_together(
    sqlite_api: Api, tmp_path: Any, asynchronous: bool
) -> None:
    endpoint = await sqlite_api.endpoint()
    wanted = await publish_bodies(sqlite_api)
    path = tmp_path / "effects.sqlite3"
    sync = create_engine(f"sqlite:///{path}")
    SqlStore(sync).create_table().run()
    with sync.begin() as connection:
        connection.execute(text("CREATE TABLE effects (id TEXT)"))
    insert, failed = text("INSERT INTO effects VALUES (:id)"), list[str]()

    def fail_once(item: FeedItem) -> None:
        if item.id == wanted[2] and not failed:
            failed.append(item.id)
            raise ValueError("after the effect")

    async def handle(item: FeedItem, connection: AsyncConnection) -> None:
        await connection.execute(insert, {"id": item.id})
        fail_once(item)

    def handle_plainly(item: FeedItem, connection: Any) -> None:
        connection.execute(insert, {"id": item.id})
        fail_once(item)

    engine: Any = create_async_engine(f"sqlite+aiosqlite:///{path}") if asynchronous else sync
    gate = Gate(SqlStore(engine))
    handler = handle if asynchronous else handle_plainly
    async with client(sqlite_api) as http:
        feed = MissedEvents(http, endpoint["id"])
        first = await feed.drain(gate, handler, transaction=engine.begin)
        assert first == Drained(handled=4, failed=1)
        second = await feed.drain(gate, handler, transaction=engine.begin)
        assert second == Drained(handled=1)
        everything = MissedEvents(http, endpoint["id"], undelivered=False)
        again = await everything.drain(gate, handler, transaction=engine.begin)
        assert again == Drained(duplicates=5)
    with sync.connect() as connection:
        rows = connection.scalars(text("SELECT id FROM effects")).all()
    assert sorted(rows) == sorted(wanted)
    sync.dispose()
    if asynchronous:
        await engine.dispose()
