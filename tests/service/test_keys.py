"""API keys: shown once, stored as digests, expiring, revoked."""

from __future__ import annotations

import hashlib
from datetime import timedelta

import pytest

from delivery_service.store import keys
from sender.errors import PublishError
from tests.service.caller import Api


async def _create(api: Api, **members: object) -> dict[str, str]:
    body = {"name": "k", "scope": "read", **members}
    made: dict[str, str] = await api.ok("POST", "/v1/keys", json=body)
    return made


async def test_a_key_is_shown_once_and_works(api: Api) -> None:
    made = await _create(api, scope="tenant", tenant="acme")
    key = made.pop("key")
    assert key.startswith("shk_")
    assert len(key) == 47
    assert key.startswith(made["hint"].rstrip("…"))
    path = f"/v1/keys/{made['id']}"
    shown = await api.call("GET", path)
    assert shown.json() == made
    assert key not in shown.text
    assert key not in (await api.call("GET", "/v1/keys")).text
    await api.ok("GET", "/v1/endpoints", key=key)
    assert (await api.ok("GET", path))["last_used_at"] == "2026-11-29T10:00:00Z"


async def test_only_the_digest_is_stored(api: Api) -> None:
    made = await _create(api)
    row = await api.database.read(keys.get, made["id"])
    assert row is not None
    assert bytes(row["digest"]) == hashlib.sha256(made["key"].encode()).digest()
    assert made["key"] not in repr(row)
    assert made["key"] not in repr(keys.NewKey("key_1", made["key"]))


async def test_an_expired_key_is_401(api: Api) -> None:
    made = await _create(api, expires_at="2026-11-29T11:00:00Z")
    api.clock.advance(timedelta(minutes=59, seconds=59))
    await api.ok("GET", "/v1/events", key=made["key"])
    api.clock.advance(timedelta(seconds=1))
    await api.problem(401, "GET", "/v1/events", key=made["key"])


async def test_a_revoked_key_is_401_at_once_and_stays_in_the_list(api: Api) -> None:
    made = await _create(api)
    path = f"/v1/keys/{made['id']}"
    await api.ok("GET", "/v1/events", key=made["key"])
    assert (await api.call("DELETE", path)).status_code == 204
    await api.problem(401, "GET", "/v1/events", key=made["key"])
    assert (await api.call("DELETE", path)).status_code == 204
    assert (await api.ok("GET", path))["revoked_at"] == "2026-11-29T10:00:00Z"


async def test_last_use_is_noted_once_a_minute(api: Api) -> None:
    made = await _create(api)
    path = f"/v1/keys/{made['id']}"
    for seconds, expected in ((0, "10:00:00"), (59, "10:00:00"), (2, "10:01:01")):
        api.clock.advance(timedelta(seconds=seconds))
        await api.ok("GET", "/v1/events", key=made["key"])
        assert (await api.ok("GET", path))["last_used_at"] == f"2026-11-29T{expected}Z"


async def test_keys_are_listed_by_scope_and_tenant(api: Api) -> None:
    made = await _create(api, scope="tenant", tenant="initech")
    for params in ({"tenant": "initech"}, {"tenant": "initech", "scope": "tenant"}):
        shown = (await api.ok("GET", "/v1/keys", params=params))["items"]
        assert [item["id"] for item in shown] == [made["id"]]
    admins = (await api.ok("GET", "/v1/keys", params={"scope": "admin"}))["items"]
    assert {item["name"] for item in admins} == {"expired", "admin"}


@pytest.mark.parametrize("scheme", ["bearer", "BEARER", "Bearer"])
async def test_the_scheme_may_be_in_any_case(sqlite_api: Api, scheme: str) -> None:
    headers = {"authorization": f"{scheme} {sqlite_api.keys['admin']}"}
    answer = await sqlite_api.client.get("/v1/events", headers=headers)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"scope": "root"}, keys.UnusableKey),
        ({"scope": "tenant"}, keys.UnusableKey),
        ({"scope": "read", "tenant_id": "acme"}, keys.UnusableKey),
        ({"scope": "read", "name": "a\0"}, keys.UnusableKey),
        ({"scope": "tenant", "tenant_id": "a\0"}, PublishError),
    ],
)
async def test_the_store_refuses_keys_that_make_no_sense(
    sqlite_api: Api, fields: dict[str, str], error: type[Exception]
) -> None:
    with pytest.raises(error):
        await sqlite_api.database.write(keys.create, **{"name": "k", **fields})
