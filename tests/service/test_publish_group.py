"""Concurrent publishes share transactions, and nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import event, select

from delivery_service.api import publish_group
from delivery_service.api.problems import Problem
from sender.tables import events
from tests.service.caller import Api

PATH = "/v1/events"


def _body(number: int, **members: Any) -> dict[str, Any]:
    return {"tenant": "acme", "type": "a.b", "data": number, **members}


def _count_commits(api: Api) -> list[None]:
    commits: list[None] = []
    event.listen(
        api.database.engine.sync_engine, "commit", lambda _connection: commits.append(None)
    )
    return commits


async def test_each_of_many_is_stored_once_in_few_transactions(api: Api) -> None:
    await api.endpoint()
    await api.ok("POST", PATH, json=_body(-1), key="publish")
    commits = _count_commits(api)
    answers = await asyncio.gather(
        *(api.call("POST", PATH, json=_body(number), key="publish") for number in range(60))
    )
    assert [answer.status_code for answer in answers] == [202] * 60
    made = {answer.json()["id"]: number for number, answer in enumerate(answers)}
    assert len(made) == 60
    assert len(commits) < 20
    rows = await api.database.read(
        lambda connection: connection.execute(select(events.c.id, events.c.body)).all()
    )
    bodies = {row.id: bytes(row.body) for row in rows}
    for event_id, number in made.items():  # each answer names the event of its own request
        assert bodies[event_id].endswith(b'"data":%d}' % number)
    assert all(len(answer.json()["deliveries"]) == 1 for answer in answers)


async def test_one_that_is_refused_does_not_hurt_the_others(api: Api) -> None:
    limit = api.service.settings.max_body_bytes
    bodies = [_body(number) for number in range(12)]
    bodies[5]["data"] = "x" * (limit - 10)
    answers = await asyncio.gather(*(api.call("POST", PATH, json=body) for body in bodies))
    statuses = [answer.status_code for answer in answers]
    assert statuses == [202] * 5 + [413] + [202] * 6
    shown = await api.ok("GET", PATH)
    assert len(shown["items"]) == 11


async def test_keyed_ones_keep_their_meaning(api: Api) -> None:
    answers = await asyncio.gather(
        *(
            api.call("POST", PATH, json=_body(n // 2, idempotency_key=f"k{n // 2}"))
            for n in range(8)
        ),
        *(api.call("POST", PATH, json=_body(n)) for n in range(8)),
    )
    assert all(answer.status_code == 202 for answer in answers)
    assert len({answer.json()["id"] for answer in answers[:8]}) == 4
    assert len({answer.json()["id"] for answer in answers[8:]}) == 8


async def test_the_database_being_away_is_told_to_all_and_ends(
    sqlite_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = sqlite_api
    calls = 0
    arrived = 0
    all_there = asyncio.Event()
    write = publish_group._write
    publish = publish_group.PublishGroup.publish

    async def arriving(group: Any, context: Any, new: Any) -> Any:
        nonlocal arrived
        arrived += 1
        if arrived == 20:
            all_there.set()
        return await publish(group, context, new)

    async def away(context: Any, batch: Any) -> Any:
        nonlocal calls
        calls += 1
        # The database takes its time to be away: meanwhile the others come in.
        await all_there.wait()
        raise Problem(503, "database-unavailable", "away")

    monkeypatch.setattr(publish_group.PublishGroup, "publish", arriving)
    monkeypatch.setattr(publish_group, "_write", away)
    answers = await asyncio.gather(*(api.call("POST", PATH, json=_body(n)) for n in range(20)))
    assert {answer.status_code for answer in answers} == {503}
    assert calls < 20
    monkeypatch.setattr(publish_group, "_write", write)
    await api.ok("POST", PATH, json=_body(1))


async def test_none_is_left_waiting_however_they_arrive(sqlite_api: Api) -> None:
    api = sqlite_api

    async def caller(number: int) -> None:
        for _ in range(15):
            await api.ok("POST", PATH, json=_body(number), key="publish")

    await asyncio.wait_for(asyncio.gather(*(caller(number) for number in range(5))), 60)
    assert len((await api.ok("GET", PATH, params={"limit": 200}))["items"]) == 75
