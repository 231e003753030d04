"""The catalogue of event types, and validation at publish."""

from __future__ import annotations

from typing import Any

import pytest

from tests.service.caller import Api, event

SCHEMA = {
    "type": "object",
    "required": ["id"],
    "properties": {"id": {"type": "integer"}, "a/b": {"type": "string"}},
    "additionalProperties": False,
}
PATH = "/v1/event-types/invoice.paid"


async def _put(api: Api, **members: Any) -> dict[str, Any]:
    shown: dict[str, Any] = await api.ok("PUT", PATH, json=members)
    return shown


async def test_types_are_registered_replaced_archived_and_listed(api: Api) -> None:
    settings = {
        "description": "Paid",
        "schema": SCHEMA,
        "validation": "warn",
        "example": {"id": 1, "x": None},
    }
    first = await api.call("PUT", PATH, json=settings)
    assert first.status_code == 201
    shown = first.json()
    assert {name: shown[name] for name in settings} == settings
    assert await api.ok("GET", PATH, key="tenant") == shown
    replaced = await api.call("PUT", PATH, json={})
    assert replaced.status_code == 200
    assert (replaced.json()["schema"], replaced.json()["validation"]) == (None, "off")
    await api.ok("PUT", "/v1/event-types/customer.created", json={})
    assert (await api.call("DELETE", PATH)).status_code == 204
    assert (await api.call("DELETE", PATH)).status_code == 204

    async def names(**params: Any) -> list[str]:
        items = (await api.ok("GET", "/v1/event-types", params=params))["items"]
        return [item["name"] for item in items]

    assert await names() == ["customer.created"]
    assert await names(archived=True) == ["customer.created", "invoice.paid"]
    assert (await api.ok("GET", PATH))["archived_at"] == "2026-11-29T10:00:00Z"
    assert (await _put(api))["archived_at"] is None
    await api.problem(404, "GET", "/v1/event-types/nobody.knows")
    await api.problem(404, "DELETE", "/v1/event-types/nobody.knows")


@pytest.mark.parametrize(
    ("data", "pointers"),
    [
        ('{"id":"x"}', {"#/data/id"}),
        ("{}", {"#/data"}),
        ("[]", {"#/data"}),
        ('{"id":1,"a/b":2,"c":3}', {"#/data/a~1b", "#/data"}),
    ],
)
async def test_data_that_does_not_fit_is_refused_or_warned_of(
    api: Api, data: str, pointers: set[str]
) -> None:
    await _put(api, schema=SCHEMA, validation="refuse")
    problem = await api.problem(422, "POST", "/v1/events", **event(data=data))
    assert {error["pointer"] for error in problem["errors"]} == pointers
    assert (await api.ok("GET", "/v1/events"))["items"] == []
    await _put(api, schema=SCHEMA, validation="warn")
    done = await api.publish(data=data)
    assert {warning.split(":")[0] for warning in done["warnings"]} == pointers
    await _put(api, schema=SCHEMA, validation="off")
    assert "warnings" not in await api.publish(data=data)


async def test_data_that_fits_is_published_without_a_change(api: Api) -> None:
    await _put(api, schema=SCHEMA, validation="refuse")
    done = await api.publish(data='{"id": 8202522731445525542 }')
    shown = await api.call("GET", f"/v1/events/{done['id']}")
    assert b'"data":{"id": 8202522731445525542 }}' in shown.content
    assert "warnings" not in done
    await api.publish(event_type="customer.created", data="[]")


async def test_a_batch_names_the_event_that_does_not_fit(api: Api) -> None:
    await _put(api, schema=SCHEMA, validation="refuse")
    good = {"tenant": "acme", "type": "invoice.paid", "data": {"id": 1}}
    body = {"events": [good, {**good, "data": {"id": None}}]}
    problem = await api.problem(422, "POST", "/v1/events/batch", json=body)
    assert problem["errors"][0]["pointer"] == "#/events/1/data/id"
    assert (await api.ok("GET", "/v1/events"))["items"] == []


async def test_a_reference_to_another_document_is_not_followed(api: Api) -> None:
    schema = {"$ref": "http://127.0.0.1:9/schema.json"}
    await _put(api, schema=schema, validation="refuse")
    problem = await api.problem(422, "POST", "/v1/events", **event())
    assert "schema can't be applied" in problem["detail"]


@pytest.mark.parametrize(
    "body",
    [
        {"schema": {"type": "no such"}},
        {"schema": {"required": "id"}},
        {"schema": []},
        {"validation": "warn"},
        {"validation": "maybe"},
        {"description": "a\0"},
        {"odd": 1},
    ],
)
async def test_bad_settings_of_a_type(sqlite_api: Api, body: dict[str, Any]) -> None:
    await sqlite_api.problem(422, "PUT", PATH, json=body)
    assert (await sqlite_api.ok("GET", "/v1/event-types"))["items"] == []


@pytest.mark.parametrize("name", ["a%20b", "a..b", "%00", "x" * 129])
async def test_bad_names_of_a_type(sqlite_api: Api, name: str) -> None:
    await sqlite_api.problem(422, "PUT", f"/v1/event-types/{name}", json={})


async def test_the_catalogue_is_exported_as_openapi_webhooks(api: Api) -> None:
    await _put(api, schema=SCHEMA, description="Paid")
    document = await api.ok("GET", "/v1/event-types-openapi", key="tenant")
    assert document["openapi"].startswith("3.1")
    operation = document["webhooks"]["invoice.paid"]["post"]
    body = operation["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"]["data"] == SCHEMA
    assert body["properties"]["type"] == {"const": "invoice.paid"}
