"""Portal tokens: one tenant, a day at most, gone a day later."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from delivery_service.store import keys
from tests.service.caller import Api

PATH = "/v1/portal-tokens"


async def _token(api: Api, **members: Any) -> dict[str, Any]:
    made: dict[str, Any] = await api.ok("POST", PATH, json={"tenant": "acme", **members})
    return made


async def test_a_token_opens_its_tenant_until_it_expires(api: Api) -> None:
    mine, theirs = await api.endpoint("acme"), await api.endpoint("globex")
    made = await _token(api)
    assert made["expires_at"] == "2026-11-29T11:00:00Z"
    assert made["tenant"] == "acme"
    token = made["token"]
    shown = (await api.ok("GET", "/v1/endpoints", key=token))["items"]
    assert [item["id"] for item in shown] == [mine["id"]]
    await api.problem(404, "GET", f"/v1/endpoints/{theirs['id']}", key=token)
    await api.ok("PATCH", f"/v1/endpoints/{mine['id']}", key=token, json={"description": "x"})
    await api.problem(403, "POST", "/v1/events", key=token, json={})
    await api.problem(403, "POST", PATH, key=token, json={"tenant": "acme"})
    api.clock.advance(timedelta(hours=1))
    await api.problem(401, "GET", "/v1/endpoints", key=token)


async def test_a_token_is_revoked_as_a_key_and_what_it_did_is_in_the_audit_log(api: Api) -> None:
    endpoint = await api.endpoint()
    made = await _token(api, expires_in_seconds=86400)
    await api.ok("POST", f"/v1/endpoints/{endpoint['id']}/disable", key=made["token"])
    assert (await api.call("DELETE", f"/v1/keys/{made['id']}")).status_code == 204
    await api.problem(401, "GET", "/v1/endpoints", key=made["token"])
    log = await api.call("GET", "/v1/audit-log")
    assert made["token"] not in log.text
    by_token = [item for item in log.json()["items"] if item["actor"] == made["id"]]
    assert [item["target"] for item in by_token] == [endpoint["id"]]
    of_token = [item["action"] for item in log.json()["items"] if item["target"] == made["id"]]
    assert of_token == ["key.revoked", "portal_token.created"]


async def test_tokens_are_told_from_keys_in_the_list(api: Api) -> None:
    made = await _token(api)
    params = {"scope": "tenant", "tenant": "acme"}
    for portal, expected in ((True, [made["id"]]), (False, None)):
        shown = await api.ok("GET", "/v1/keys", params={**params, "portal": str(portal).lower()})
        ids = [item["id"] for item in shown["items"]]
        assert made["id"] in ids if expected else made["id"] not in ids
        assert all(item["portal"] is portal for item in shown["items"])


@pytest.mark.parametrize(
    ("members", "pointer"),
    [
        ({"expires_in_seconds": 86401}, "#/expires_in_seconds"),
        ({"expires_in_seconds": 59}, "#/expires_in_seconds"),
        ({"expires_in_seconds": -1}, "#/expires_in_seconds"),
        ({"expires_in_seconds": None}, "#/expires_in_seconds"),
        ({"tenant": ""}, "#/tenant"),
        ({"tenant": "a\0"}, "#/tenant"),
        ({"scope": "admin"}, "#/scope"),
    ],
)
async def test_other_tokens_are_422(sqlite_api: Api, members: dict[str, Any], pointer: str) -> None:
    problem = await sqlite_api.problem(422, "POST", PATH, json={"tenant": "acme", **members})
    assert problem["errors"][0]["pointer"] == pointer


async def test_the_store_makes_none_that_last_longer(sqlite_api: Api) -> None:
    for lasts in (timedelta(hours=24, seconds=1), timedelta(), timedelta(seconds=-1)):
        with pytest.raises(keys.UnusableKey, match="24 hours"):
            await sqlite_api.database.write(keys.create_portal_token, "acme", lasts)


async def test_expired_tokens_are_removed_and_keys_stay(api: Api) -> None:
    token = await _token(api)
    body = {"name": "k", "scope": "read", "expires_at": "2026-11-29T11:00:00Z"}
    key = await api.ok("POST", "/v1/keys", json=body)
    day = timedelta(days=1)
    for step, expected in ((timedelta(hours=24), 0), (timedelta(hours=1, seconds=1), 1)):
        api.clock.advance(step)
        removed = await api.database.write(keys.remove_portal_tokens, day, api.clock.now())
        assert removed == expected
    await api.problem(404, "GET", f"/v1/keys/{token['id']}")
    await api.ok("GET", f"/v1/keys/{key['id']}")
