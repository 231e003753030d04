"""Keys that were verified a moment ago: how long they are trusted, and what ends that."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event

from delivery_service.api.callers import KEPT_FOR
from delivery_service.store import keys, tenants
from tests.service.caller import Api, open_api

PATH = "/v1/endpoints"


async def _made(api: Api, **members: Any) -> dict[str, Any]:
    body = {"name": "k", "scope": "read", **members}
    made: dict[str, Any] = await api.ok("POST", "/v1/keys", json=body)
    return made


async def test_revocation_elsewhere_is_seen_within_two_seconds(api: Api) -> None:
    made = await _made(api)
    await api.ok("GET", PATH, key=made["key"])
    await api.database.write(keys.revoke, made["id"], api.clock.now())  # as `surehook keys` does
    await api.ok("GET", PATH, key=made["key"])
    assert KEPT_FOR <= 5
    api.clock.advance(timedelta(seconds=KEPT_FOR))
    await api.problem(401, "GET", PATH, key=made["key"])


async def test_revocation_in_another_process_of_the_api(api: Api) -> None:
    made = await _made(api)
    async with open_api(api.service, api.clock, api.keys) as other:
        await other.ok("GET", PATH, key=made["key"])
        assert (await api.call("DELETE", f"/v1/keys/{made['id']}")).status_code == 204
        await api.problem(401, "GET", PATH, key=made["key"])
        api.clock.advance(timedelta(seconds=KEPT_FOR))
        await other.problem(401, "GET", PATH, key=made["key"])


@pytest.mark.parametrize("how", ["api", "store"])
async def test_the_keys_of_a_deleted_tenant_end(api: Api, how: str) -> None:
    await api.endpoint("acme")
    await api.ok("GET", PATH, key="tenant")
    if how == "api":
        assert (await api.call("DELETE", "/v1/tenants/acme")).status_code == 204
    else:
        await api.database.write(tenants.remove, "acme")
        api.clock.advance(timedelta(seconds=KEPT_FOR))
    await api.problem(401, "GET", PATH, key="tenant")


async def test_a_key_expires_on_time_although_it_was_trusted(api: Api) -> None:
    made = await _made(api, expires_at="2026-11-29T10:00:01Z")
    await api.ok("GET", PATH, key=made["key"])
    api.clock.advance(timedelta(seconds=0.9))
    await api.ok("GET", PATH, key=made["key"])
    api.clock.advance(timedelta(seconds=0.1))
    await api.problem(401, "GET", PATH, key=made["key"])


async def test_an_unknown_key_is_looked_up_each_time(api: Api) -> None:
    """A key that is made a moment later works at once."""
    await api.problem(401, "GET", PATH, key="shk_none")
    made = await _made(api)
    await api.ok("GET", PATH, key=made["key"])


async def test_a_look_up_that_a_revocation_overtakes_is_not_kept(
    sqlite_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = sqlite_api
    made = await _made(api)
    found, go_on = asyncio.Event(), asyncio.Event()
    read = type(api.database).read

    async def slow(self: Any, work: Any, *args: Any, **kwargs: Any) -> Any:
        row = await read(self, work, *args, **kwargs)
        if work is keys.find and row is not None and row["id"] == made["id"]:
            found.set()
            await go_on.wait()
        return row

    monkeypatch.setattr(type(api.database), "read", slow)
    under_way = asyncio.create_task(api.call("GET", PATH, key=made["key"]))
    await found.wait()
    assert (await api.call("DELETE", f"/v1/keys/{made['id']}")).status_code == 204
    go_on.set()
    assert (await under_way).status_code == 200  # it began before
    await api.problem(401, "GET", PATH, key=made["key"])


async def test_verified_once_in_two_seconds(sqlite_api: Api) -> None:
    api = sqlite_api
    asked: list[str] = []

    def note(_c: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if statement.startswith("SELECT surehook_api_keys"):
            asked.append(statement)

    event.listen(api.database.engine.sync_engine, "before_cursor_execute", note)
    for _ in range(5):
        await api.ok("GET", PATH, key="read")
    assert len(asked) == 1
    api.clock.advance(timedelta(seconds=KEPT_FOR))
    await api.ok("GET", PATH, key="read")
    assert len(asked) == 2
