"""The rate limit of a key: exact, told in headers, shared by processes."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import event

from delivery_service.bootstrap import build, migrate_database
from delivery_service.settings import Settings
from delivery_service.store import keys
from tests.service.caller import Api, problem_in
from tests.support.engine import KEY
from tests.support.ports import HOST
from tests.support.postgres import Postgres
from tests.support.processes import Process, Processes

PATH = "/v1/event-types"


async def _limited(api: Api, limit: int = 3, **members: Any) -> dict[str, Any]:
    body = {"name": "limited", "scope": "read", "rate_limit": limit, **members}
    made: dict[str, Any] = await api.ok("POST", "/v1/keys", json=body)
    assert made["rate_limit"] == limit
    return made


async def test_requests_beyond_the_limit_are_429_until_the_window_has_passed(api: Api) -> None:
    key = (await _limited(api))["key"]
    told = []
    for _ in range(3):
        answer = await api.call("GET", PATH, key=key)
        assert answer.status_code == 200
        assert answer.headers["ratelimit-policy"] == '"key";q=3;w=60'
        told.append(answer.headers["ratelimit"])
    assert told == [f'"key";r={left};t=61' for left in (2, 1, 0)]
    refused = await api.call("GET", PATH, key=key)
    assert refused.status_code == 429
    assert problem_in(refused)["type"].endswith(":rate-limited")
    assert refused.headers["retry-after"] == "61"
    assert refused.headers["ratelimit"] == '"key";r=0;t=61'
    await api.ok("GET", PATH)  # other keys have their own
    api.clock.advance(timedelta(seconds=60))
    await api.problem(429, "GET", PATH, key=key)
    api.clock.advance(timedelta(seconds=1))
    await api.ok("GET", PATH, key=key)


async def test_it_slides(api: Api) -> None:
    key = (await _limited(api))["key"]
    await api.ok("GET", PATH, key=key)
    api.clock.advance(timedelta(seconds=40))
    for _ in range(2):
        await api.ok("GET", PATH, key=key)
    api.clock.advance(timedelta(seconds=21))
    await api.ok("GET", PATH, key=key)
    await api.problem(429, "GET", PATH, key=key)


async def test_refused_and_failing_requests_differ(api: Api) -> None:
    """A request that fails counts; one that was refused for the limit does not."""
    key = (await _limited(api, 1))["key"]
    await api.problem(403, "POST", "/v1/events", key=key, content=b"{}")
    for _ in range(3):
        await api.problem(429, "GET", PATH, key=key)
    api.clock.advance(timedelta(seconds=61))
    await api.ok("GET", PATH, key=key)


async def test_publishing_is_limited_too(api: Api) -> None:
    key = (await _limited(api, 1, scope="publish"))["key"]
    body = {"tenant": "acme", "type": "a.b", "data": 1}
    answer = await api.call("POST", "/v1/events", key=key, json=body)
    assert answer.status_code == 202
    assert answer.headers["ratelimit"].startswith('"key";r=0;')
    await api.problem(429, "POST", "/v1/events", key=key, json=body)
    assert len((await api.ok("GET", "/v1/events"))["items"]) == 1


@pytest.mark.parametrize("limit", [0, -1, 1_000_001, 1.5, "3"])
async def test_a_limit_that_is_none_is_422(sqlite_api: Api, limit: Any) -> None:
    body = {"name": "k", "scope": "read", "rate_limit": limit}
    problem = await sqlite_api.problem(422, "POST", "/v1/keys", json=body)
    assert problem["errors"][0]["pointer"] == "#/rate_limit"


async def test_a_key_without_a_limit_costs_no_statement(sqlite_api: Api) -> None:
    api = sqlite_api
    await api.ok("GET", PATH, key="read")
    statements: list[str] = []

    def note(_c: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        statements.append(statement)

    event.listen(api.database.engine.sync_engine, "before_cursor_execute", note)
    answer = await api.call("GET", PATH, key="read")
    assert "ratelimit" not in answer.headers
    assert [each for each in statements if "api_keys" in each] == []
    assert statements


class TestSetting:
    """The limit of keys that have none of their own."""

    @pytest.fixture
    def options(self) -> dict[str, object]:
        return {"key_rate_limit": 2, "key_rate_window": 10}

    async def test_the_setting_holds_for_keys_without_their_own(self, api: Api) -> None:
        own = (await _limited(api, 5))["key"]
        for _ in range(2):
            answer = await api.call("GET", PATH, key="read")
            assert answer.headers["ratelimit-policy"] == '"key";q=2;w=10'
        await api.problem(429, "GET", PATH, key="read")
        for _ in range(5):
            await api.ok("GET", PATH, key=own)
        await api.problem(429, "GET", PATH, key=own)


def start_api(processes: Processes, url: str, **options: str) -> Process:
    """Start ``surehook api`` on a port of its own choice."""
    given = {
        "database_url": url,
        "encryption_keys": KEY,
        "port": "0",
        "host": HOST,
        "log_level": "warning",
        **options,
    }
    environment = {f"SUREHOOK_{name.upper()}": value for name, value in given.items()}
    return processes.python("delivery_service.cli", "api", env=environment)


def url_of(process: Process) -> str:
    """Where it listens."""
    found = process.wait_for(r"^Listening on (http://\S+)$")
    assert isinstance(found, re.Match)
    return str(found[1])


async def test_two_processes_share_a_limit_exactly_under_200_concurrent_requests(
    postgres: Postgres, processes: Processes
) -> None:
    url = postgres.url(postgres.create_database())
    settings = Settings(database_url=url, encryption_keys=[KEY])
    await migrate_database(settings)
    service = build(settings)
    made = await service.database.write(keys.create, name="k", scope="read", rate_limit=70)
    await service.close()
    options = {"key_rate_window": "3600"}
    both = [start_api(processes, url, **options) for _ in range(2)]
    urls = [url_of(process) for process in both]
    headers = {"authorization": f"Bearer {made.key}"}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(headers=headers, limits=limits, timeout=60) as client:
        answers = await asyncio.gather(
            *(client.get(urls[number % 2] + PATH) for number in range(200))
        )
    statuses = [answer.status_code for answer in answers]
    assert (statuses.count(200), statuses.count(429)) == (70, 130)
    left = sorted(
        int(answer.headers["ratelimit"].split("r=")[1].split(";")[0])
        for answer in answers
        if answer.status_code == 200
    )
    assert left == list(range(70))  # each place was given once
    for statuses_of_one in (statuses[::2], statuses[1::2]):
        assert statuses_of_one.count(200) > 0
