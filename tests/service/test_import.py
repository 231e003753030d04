"""The catalogue from and to an OpenAPI document."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from tests.service.caller import Api, event

PATH = "/v1/event-types-openapi"
MONEY = {
    "type": "object",
    "required": ["amount"],
    "properties": {"amount": {"type": "number"}, "of": {"$ref": "#/components/schemas/Currency"}},
}
CURRENCY = {"enum": ["EUR", "CHF"]}


def _document(schema: Any, name: str = "invoice.paid", **media: Any) -> dict[str, Any]:
    content = {"application/json": {"schema": schema, **media}}
    operation = {"description": "Paid.", "requestBody": {"content": content}, "x-own": 1}
    return {
        "openapi": "3.1.0",
        "info": {"title": "T", "version": "1"},
        "paths": {},
        "webhooks": {name: {"post": operation}},
        "components": {"schemas": {"Money": MONEY, "Currency": CURRENCY, "Unused": {}}},
    }


async def _imported(api: Api, document: dict[str, Any]) -> dict[str, Any]:
    done: dict[str, Any] = await api.ok("POST", PATH, json=document)
    return done


async def test_a_schema_comes_with_what_it_refers_to(api: Api) -> None:
    schema = {"type": "object", "properties": {"total": {"$ref": "#/components/schemas/Money"}}}
    done = await _imported(api, _document(schema, example={"total": {"amount": 1}}))
    assert done == {"created": ["invoice.paid"], "changed": [], "refused": []}
    shown = await api.ok("GET", "/v1/event-types/invoice.paid")
    assert (shown["description"], shown["example"]) == ("Paid.", {"total": {"amount": 1}})
    assert set(shown["schema"]["$defs"]) == {"Money", "Currency"}
    jsonschema.validate({"total": {"amount": 1, "of": "EUR"}}, shown["schema"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"total": {"amount": 1, "of": "USD"}}, shown["schema"])
    # It can be validated by: nothing is looked for elsewhere.
    await api.ok(
        "PUT",
        "/v1/event-types/invoice.paid",
        json={"schema": shown["schema"], "validation": "refuse"},
    )
    await api.problem(422, "POST", "/v1/events", **event(data='{"total":{"amount":1,"of":"USD"}}'))
    await api.ok("POST", "/v1/events", **event(data='{"total":{"amount":1,"of":"EUR"}}'))


async def test_of_an_envelope_the_data_counts(api: Api) -> None:
    members = {
        "id": {},
        "type": {},
        "timestamp": {},
        "data": {"$ref": "#/components/schemas/Money"},
    }
    document = _document({"type": "object", "properties": members})
    media = document["webhooks"]["invoice.paid"]["post"]["requestBody"]["content"]
    media["application/json"]["examples"] = {"one": {"value": {"id": "e", "data": {"amount": 3}}}}
    document["components"]["schemas"]["Body"] = media["application/json"]["schema"]
    media["application/json"]["schema"] = {"$ref": "#/components/schemas/Body"}
    await _imported(api, document)
    shown = await api.ok("GET", "/v1/event-types/invoice.paid")
    assert shown["example"] == {"amount": 3}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({}, shown["schema"])


async def test_a_repeat_changes_nothing_and_validation_stays(api: Api) -> None:
    document = _document({"type": "object"})
    await _imported(api, document)
    settings = {"schema": {"type": "object"}, "validation": "warn", "description": "Paid."}
    await api.ok("PUT", "/v1/event-types/invoice.paid", json=settings)
    nothing = {"created": [], "changed": [], "refused": []}
    assert await _imported(api, document) == nothing
    document["webhooks"]["invoice.paid"]["post"]["description"] = "Paid in full."
    assert await _imported(api, document) == {**nothing, "changed": ["invoice.paid"]}
    shown = await api.ok("GET", "/v1/event-types/invoice.paid")
    assert (shown["validation"], shown["description"]) == ("warn", "Paid in full.")
    await api.ok("DELETE", "/v1/event-types/invoice.paid")
    await _imported(api, document)
    assert (await api.ok("GET", "/v1/event-types/invoice.paid"))["archived_at"] is None


async def test_what_was_exported_can_be_imported(api: Api) -> None:
    schema = {
        "type": "object",
        "properties": {"total": {"$ref": "#/$defs/Money"}},
        "$defs": {"Money": {"type": "number"}},
    }
    for name in ("invoice.paid", "invoice.late"):
        settings = {"schema": schema, "example": {"total": 1}, "description": "D"}
        await api.ok("PUT", f"/v1/event-types/{name}", json=settings)
    await api.ok("PUT", "/v1/event-types/plain", json={})
    document = await api.ok("GET", PATH)
    assert set(document["components"]["schemas"]) == {"invoice.paid.Money", "invoice.late.Money"}
    for name in ("invoice.paid", "invoice.late", "plain"):
        await api.ok("PUT", f"/v1/event-types/{name}", json={"description": "changed"})
    done = await _imported(api, document)
    assert sorted(done["changed"]) == ["invoice.late", "invoice.paid", "plain"]
    assert await api.ok("GET", PATH) != {}
    shown = await api.ok("GET", "/v1/event-types/invoice.paid")
    assert (shown["example"], shown["description"]) == ({"total": 1}, "D")
    jsonschema.validate({"total": 1}, shown["schema"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"total": "x"}, shown["schema"])
    assert (await api.ok("GET", "/v1/event-types/plain"))["schema"] is None


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (_document({}, name="no name!"), "segments"),
        (_document({"$ref": "#/components/schemas/None"}), "no component"),
        (_document({"properties": {"a": {"$ref": "https://evil.example/s"}}}), "no component"),
        (_document({"properties": {"a": {"$ref": "#/components/schemas/None"}}}), "no component"),
        (_document([1]), "no object"),
        (_document({"type": "nonsense"}), "not valid"),
    ],
)
async def test_what_can_not_be_imported_is_named(
    sqlite_api: Api, document: dict[str, Any], reason: str
) -> None:
    document["webhooks"]["good"] = {"post": {}}
    done = await _imported(sqlite_api, document)
    assert done["created"] == ["good"]
    (refused,) = done["refused"]
    assert reason in refused["reason"]


@pytest.mark.parametrize("body", [{}, {"openapi": "3.0.3", "webhooks": {}}, {"openapi": "3.1.0"}])
async def test_what_is_no_such_document(sqlite_api: Api, body: dict[str, Any]) -> None:
    await sqlite_api.problem(422, "POST", PATH, json=body)


async def test_components_that_refer_to_each_other_in_a_circle(sqlite_api: Api) -> None:
    document = _document({"$ref": "#/components/schemas/A"})
    parts = document["components"]["schemas"]
    parts["A"] = {"$ref": "#/components/schemas/B"}
    parts["B"] = {"$ref": "#/components/schemas/A"}
    assert len((await _imported(sqlite_api, document))["refused"]) == 1
    parts["A"] = {"properties": {"next": {"$ref": "#/components/schemas/A"}}}
    assert (await _imported(sqlite_api, document))["created"] == ["invoice.paid"]
