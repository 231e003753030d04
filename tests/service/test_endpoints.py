"""Endpoints: created, read, listed, changed, deleted; secrets shown once and rotated."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
import trustme

from delivery_service.store import endpoints
from tests.service.caller import URL, Api
from wire.secrets import SigningKey, generate_secret, parse_secret, public_key


async def _active(api: Api, endpoint_id: str) -> list[str]:
    found = await api.database.read(endpoints.active_secrets, [endpoint_id], api.clock.now())
    return [api.service.sealer.open(row["ciphertext"]) for row in found[endpoint_id]]


async def _row(api: Api, endpoint_id: str) -> dict[str, Any]:
    row = await api.database.read(endpoints.get, endpoint_id)
    assert row is not None
    return row


async def test_an_endpoint_with_every_setting(api: Api) -> None:
    settings = {
        "uid": "crm é 1",
        "description": "Production,\nEurope",
        "metadata": {"team": "billing"},
        "event_types": ["invoice.*", "customer.created"],
        "schedule": [0, 5, 60],
        "profiles": ["standard", "github"],
        "timeout": 3.5,
        "max_in_flight": 7,
        "rate_limit": 2,
        "channels": ["project:17"],
        "filter": {"path": "/total", "gt": 1},
        "headers": {"Authorization": "Bearer s3cret", "X-Gateway": "a b"},
    }
    created = await api.endpoint(url="https://h.example/in?token=a%2Fb", **settings)
    secret = created.pop("secret")
    assert isinstance(secret, str)
    assert await _active(api, created["id"]) == [secret]
    assert created.pop("public_key") is None
    assert created == {
        **settings,
        "id": created["id"],
        "tenant": "acme",
        "url": "https://h.example/in?token=a%2Fb",
        "schedule": "0,5s,1m",
        "headers": {"Authorization": "***", "X-Gateway": "***"},
        "authentication": None,
        "tls": None,
        "verified_at": None,
        "status": "enabled",
        "disabled_reason": None,
        "disabled_at": None,
        "circuit": {
            "state": "closed",
            "failures": 0,
            "failing_since": None,
            "paused_until": None,
        },
        "created_at": "2026-11-29T10:00:00Z",
        "updated_at": "2026-11-29T10:00:00Z",
    }
    shown = await api.call("GET", f"/v1/endpoints/{created['id']}")
    assert shown.json() == created
    listed = await api.call("GET", "/v1/endpoints")
    assert listed.json()["items"] == [created]
    for answer in (shown, listed):
        assert "s3cret" not in answer.text
        assert secret not in answer.text


async def test_custom_headers_are_encrypted_at_rest(api: Api) -> None:
    created = await api.endpoint(headers={"X-Gateway": "s3cret"})
    row = await _row(api, created["id"])
    assert b"s3cret" not in bytes(row["headers"])
    assert api.service.sealer.open_json(row["headers"]) == {"X-Gateway": "s3cret"}


async def test_a_change_touches_only_what_it_names(api: Api) -> None:
    created = await api.endpoint(rate_limit=5, headers={"X-A": "1"}, schedule="1m")
    path = f"/v1/endpoints/{created['id']}"
    api.clock.advance(timedelta(seconds=90))
    changed = await api.ok("PATCH", path, json={"timeout": 2, "event_types": ["a.*"]})
    secrets = {"secret", "public_key"}
    before = {name: value for name, value in created.items() if name not in secrets}
    assert changed == {
        **before,
        "timeout": 2.0,
        "event_types": ["a.*"],
        "updated_at": "2026-11-29T10:01:30Z",
    }
    reset = {"rate_limit": None, "headers": None, "schedule": None, "description": None}
    emptied = await api.ok("PATCH", path, json=reset)
    assert (emptied["rate_limit"], emptied["headers"], emptied["schedule"]) == (None, {}, None)
    assert (await _row(api, created["id"]))["version"] == 3
    await api.problem(422, "PATCH", path, json={})


async def test_every_change_tells_workers_to_load_the_endpoint_again(api: Api) -> None:
    endpoint_id = (await api.endpoint())["id"]
    path = f"/v1/endpoints/{endpoint_id}"
    seen = [(await _row(api, endpoint_id))["version"]]
    for method, where, body in (
        ("PATCH", path, {"url": URL + "2"}),
        ("POST", f"{path}/secrets/rotate", {}),
        ("POST", f"{path}/disable", None),
        ("POST", f"{path}/enable", None),
        ("PUT", "/v1/tenants/acme", {"schedule": "5m"}),
        ("PATCH", "/v1/tenants/acme", {"profiles": ["github"]}),
    ):
        await api.ok(method, where, **({} if body is None else {"json": body}))
        seen.append((await _row(api, endpoint_id))["version"])
    assert seen == sorted(set(seen))


async def test_the_generated_secret_can_be_of_either_kind(api: Api) -> None:
    hmac = await api.endpoint()
    assert hmac["secret"].startswith("whsec_")
    ed25519 = await api.endpoint(secret_kind="whsk")
    assert isinstance(parse_secret(ed25519["secret"]), SigningKey)
    assert ed25519["public_key"] == public_key(ed25519["secret"])


async def test_an_own_secret_is_taken_as_it_is(api: Api) -> None:
    secret = generate_secret(size=24)
    created = await api.endpoint(secret=secret)
    assert created["secret"] == secret
    assert await _active(api, created["id"]) == [secret]


async def test_c04_a_rotated_secret_signs_on_for_the_overlap(api: Api) -> None:
    created = await api.endpoint()
    path = f"/v1/endpoints/{created['id']}/secrets"
    rotated = await api.ok("POST", f"{path}/rotate", json={"overlap_seconds": 3600})
    assert rotated["overlap_seconds"] == 3600
    assert await _active(api, created["id"]) == [rotated["secret"], created["secret"]]
    answer = await api.call("GET", path)
    shown = answer.json()["items"]
    assert [item["expires_at"] for item in shown] == [None, "2026-11-29T11:00:00Z"]
    assert created["secret"] not in answer.text
    assert rotated["secret"] not in answer.text
    api.clock.advance(timedelta(hours=1))
    assert await _active(api, created["id"]) == [rotated["secret"]]
    assert len((await api.ok("GET", path))["items"]) == 1


async def test_the_overlap_left_out_is_the_platforms(api: Api) -> None:
    created = await api.endpoint()
    rotated = await api.ok("POST", f"/v1/endpoints/{created['id']}/secrets/rotate")
    assert rotated["overlap_seconds"] == 86400


async def test_a_rotation_without_overlap_ends_every_older_secret(api: Api) -> None:
    created = await api.endpoint()
    path = f"/v1/endpoints/{created['id']}/secrets/rotate"
    await api.ok("POST", path)
    last = await api.ok("POST", path, json={"overlap_seconds": 0})
    assert await _active(api, created["id"]) == [last["secret"]]


async def test_a_later_rotation_never_prolongs_an_older_secret(api: Api) -> None:
    created = await api.endpoint()
    path = f"/v1/endpoints/{created['id']}/secrets"
    await api.ok("POST", f"{path}/rotate", json={"overlap_seconds": 60})
    await api.ok("POST", f"{path}/rotate", json={"overlap_seconds": 3600})
    shown = [item["expires_at"] for item in (await api.ok("GET", path))["items"]]
    assert shown == [None, "2026-11-29T11:00:00Z", "2026-11-29T10:01:00Z"]


async def test_rotating_too_often_or_to_the_same_secret_is_a_conflict(api: Api) -> None:
    secret = generate_secret()
    created = await api.endpoint(secret=secret)
    path = f"/v1/endpoints/{created['id']}/secrets/rotate"
    same = await api.problem(409, "POST", path, json={"secret": secret})
    assert same["type"].endswith(":secret-in-use")
    for _ in range(4):
        await api.ok("POST", path)
    full = await api.problem(409, "POST", path)
    assert full["type"].endswith(":too-many-secrets")
    await api.ok("POST", path, json={"overlap_seconds": 0})


async def test_profiles_that_no_secret_can_sign_are_refused_at_every_door(api: Api) -> None:
    body = {"tenant": "acme", "url": URL, "secret_kind": "whsk", "profiles": ["github"]}
    problem = await api.problem(422, "POST", "/v1/endpoints", json=body)
    assert problem["errors"][0]["pointer"] == "#/profiles"
    ed25519 = await api.endpoint(secret_kind="whsk")
    path = f"/v1/endpoints/{ed25519['id']}"
    await api.problem(422, "PATCH", path, json={"profiles": ["standard", "github"]})
    refused = {"profiles": ["idempotency-key"]}
    await api.problem(409, "PUT", "/v1/tenants/acme", json=refused)
    await api.problem(409, "PATCH", "/v1/tenants/acme", json=refused)
    assert (await api.ok("GET", "/v1/tenants/acme"))["profiles"] is None
    await api.ok("PATCH", path, json={"profiles": ["standard"]})
    await api.ok("PATCH", "/v1/tenants/acme", json=refused)
    await api.problem(422, "PATCH", path, json={"profiles": None})
    hmac = await api.endpoint()
    rotate = f"/v1/endpoints/{hmac['id']}/secrets/rotate"
    await api.problem(422, "POST", rotate, json={"secret_kind": "whsk"})


async def test_enabling_closes_the_circuit_and_disabling_twice_changes_nothing(api: Api) -> None:
    created = await api.endpoint()
    path = f"/v1/endpoints/{created['id']}"
    open_circuit = {
        "circuit": "open",
        "failures": 12,
        "failing_since": api.clock.now(),
        "pauses": 2,
        "paused_until": api.clock.now(),
    }
    await api.database.write(endpoints.set_health, created["id"], open_circuit)
    shown = await api.ok("GET", path)
    assert shown["circuit"] == {
        "state": "open",
        "failures": 12,
        "failing_since": "2026-11-29T10:00:00Z",
        "paused_until": "2026-11-29T10:00:00Z",
    }
    first = await api.ok("POST", f"{path}/disable")
    assert (first["status"], first["disabled_reason"]) == ("disabled", "operator")
    assert await api.ok("POST", f"{path}/disable") == first
    enabled = await api.ok("POST", f"{path}/enable")
    assert (enabled["status"], enabled["disabled_reason"]) == ("enabled", None)
    assert enabled["circuit"]["state"] == "closed"
    assert enabled["circuit"]["failures"] == 0


async def test_endpoints_are_listed_by_tenant_and_status(api: Api) -> None:
    first, second = await api.endpoint(), await api.endpoint("globex")
    await api.ok("POST", f"/v1/endpoints/{first['id']}/disable")
    for params, expected in (
        ({}, [second, first]),
        ({"tenant": "acme"}, [first]),
        ({"status": "disabled"}, [first]),
        ({"status": "enabled", "tenant": "acme"}, []),
        ({"tenant": "nobody"}, []),
    ):
        shown = (await api.ok("GET", "/v1/endpoints", params=params))["items"]
        assert [item["id"] for item in shown] == [item["id"] for item in expected]


async def test_a_deleted_endpoint_is_gone_with_its_secrets(api: Api) -> None:
    created = await api.endpoint(headers={"X-A": "1"})
    path = f"/v1/endpoints/{created['id']}"
    assert (await api.call("DELETE", path)).status_code == 204
    await api.problem(404, "GET", path)
    await api.problem(404, "DELETE", path)
    await api.problem(404, "POST", f"{path}/enable")
    assert await _active(api, created["id"]) == []
    rows = await api.database.read(endpoints.rows, [created["id"]])
    assert rows[0]["headers"] is None
    assert rows[0]["deleted_at"] == api.clock.now()


async def test_tenants_are_created_replaced_changed_and_listed(api: Api) -> None:
    await api.endpoint("acme/eu é")
    path = "/v1/tenants/acme%2Feu%20%C3%A9"
    assert (await api.ok("GET", path))["id"] == "acme/eu é"
    put = await api.call("PUT", path, json={"name": "Acme", "schedule": "1m,5m"})
    assert (put.status_code, put.json()["schedule"]) == (200, "1m,5m")
    changed = await api.ok("PATCH", path, json={"profiles": ["github"]})
    assert (changed["name"], changed["profiles"]) == ("Acme", ["github"])
    replaced = await api.ok("PUT", path, json={})
    assert (replaced["name"], replaced["profiles"]) == (None, None)
    new = await api.call("PUT", "/v1/tenants/zeta", json={})
    assert new.status_code == 201
    await api.problem(409, "POST", "/v1/tenants", json={"id": "zeta"})
    await api.problem(404, "PATCH", "/v1/tenants/nobody", json={})
    await api.problem(404, "GET", "/v1/tenants/nobody")
    listed = (await api.ok("GET", "/v1/tenants"))["items"]
    assert [item["id"] for item in listed] == ["acme/eu é", "zeta"]


async def test_no_secret_is_in_any_row_as_text(api: Api) -> None:
    created = await api.endpoint(headers={"Authorization": "Bearer s3cret"})
    rotated = await api.ok("POST", f"/v1/endpoints/{created['id']}/secrets/rotate")
    row = await _row(api, created["id"])
    found = await api.database.read(endpoints.active_secrets, [created["id"]], api.clock.now())
    dump = json.dumps([row, found], default=repr)
    for secret in (created["secret"], rotated["secret"], "s3cret"):
        assert secret not in dump


@pytest.mark.parametrize("schedule", [[], "[]", "", [0, 0, 5], "fast", "standard-webhooks"])
async def test_d02_schedules_are_kept_as_they_read(sqlite_api: Api, schedule: object) -> None:
    created = await sqlite_api.endpoint(schedule=schedule)
    expected = {"": "[]", "[0, 0, 5]": "0,0,5s"}.get(str(schedule), str(schedule))
    assert created["schedule"] == expected


@pytest.mark.parametrize("method", ["GET", "DELETE", "POST"])
async def test_a17_an_endpoint_has_no_method_of_its_own(sqlite_api: Api, method: str) -> None:
    """Every attempt is a POST with the signed body, so there is nothing to choose."""
    body = {"tenant": "acme", "url": URL, "method": method}
    problem = await sqlite_api.problem(422, "POST", "/v1/endpoints", json=body)
    assert problem["errors"][0]["pointer"] == "#/method"
    path = f"/v1/endpoints/{(await sqlite_api.endpoint())['id']}"
    await sqlite_api.problem(422, "PATCH", path, json={"method": method})


async def test_tls_material_is_checked_encrypted_and_not_shown(api: Api) -> None:
    authority = trustme.CA()
    client = authority.issue_cert("client.example")
    material = {
        "client_certificate": "".join(pem.bytes().decode() for pem in client.cert_chain_pems),
        "client_key": client.private_key_pem.bytes().decode(),
        "private_ca": authority.cert_pem.bytes().decode(),
    }
    endpoint = await api.endpoint(tls=material)
    shown = {"client_certificate": True, "private_ca": True}
    assert endpoint["tls"] == shown
    path = f"/v1/endpoints/{endpoint['id']}"
    assert (await api.ok("GET", path))["tls"] == shown
    row = await _row(api, endpoint["id"])
    assert b"PRIVATE KEY" not in row["tls"]
    assert api.service.sealer.open_json(row["tls"]) == material

    for wrong in (
        {"private_ca": "no certificate"},
        {"private_ca": ""},
        {"client_key": material["client_key"]},
        {**material, "client_key": "no key"},
    ):
        problem = await api.problem(422, "PATCH", path, json={"tls": wrong})
        assert problem["errors"][0]["pointer"].startswith("#/tls")
    assert (await api.ok("PATCH", path, json={"tls": None}))["tls"] is None
