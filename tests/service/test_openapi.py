"""The OpenAPI document: complete, with examples, and true under generated requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from pydantic import SecretStr
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from sqlalchemy import make_url

from delivery_service.api.problems import MEDIA_TYPE
from delivery_service.bootstrap import build
from delivery_service.clock import ManualClock
from delivery_service.settings import Settings
from tests.service.caller import URL, Api
from tests.service.caller import event as event_of
from tests.service.conftest import ENCRYPTION_KEY, Templates
from tests.service.live import LiveApi

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]
# Without shrinking time limits or a database of examples: the same requests in every run.
GENERATED = settings(
    max_examples=10,
    derandomize=True,
    database=None,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)


def _operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method, path, operation)
        for path, item in document["paths"].items()
        for method, operation in item.items()
    ]


async def test_every_operation_is_described(sqlite_api: Api) -> None:
    document = sqlite_api.app.openapi()
    assert document["openapi"].startswith("3.1")
    ids = set()
    for method, path, operation in _operations(document):
        where = f"{method} {path}"
        assert operation["summary"], where
        assert operation["description"], where
        assert operation["operationId"] not in ids, where
        ids.add(operation["operationId"])
        statuses = set(operation["responses"])
        assert "500" in statuses, where
        if path.startswith("/v1/"):
            assert operation["security"], where
            assert {"401", "403", "422", "503"} <= statuses, where
        if "requestBody" in operation:
            assert {"400", "413"} <= statuses, where
        for status, response in operation["responses"].items():
            if status >= "400":
                assert set(response["content"]) == {MEDIA_TYPE}, where


async def test_examples_in_the_document_fit_their_schemas(sqlite_api: Api) -> None:
    document = sqlite_api.app.openapi()
    seen = 0
    for name, schema in document["components"]["schemas"].items():
        for part in schema.get("properties", {}).values():
            for example in part.get("examples", ()):
                resolved = {**part, "components": document["components"]}
                jsonschema.validate(example, resolved)
                seen += 1
        assert schema["type"] == "object", name
    assert seen > 20


async def test_the_document_needs_no_key_and_is_json(sqlite_api: Api) -> None:
    answer = await sqlite_api.call("GET", "/openapi.json", key=None)
    assert answer.json() == sqlite_api.app.openapi()


@pytest.fixture
def live(
    sqlite_url: str, templates: Templates, clock: ManualClock
) -> Iterator[tuple[LiveApi, dict[str, str]]]:
    """The API on SQLite behind a real server, and its keys by kind."""
    path = make_url(sqlite_url).database
    assert path is not None
    keys = templates.copy_sqlite(path)
    settings = Settings(
        database_url=f"sqlite:///{path}", encryption_keys=[SecretStr(ENCRYPTION_KEY)]
    )
    with LiveApi(build(settings, clock)) as server:
        yield server, keys


def _things(url: str, headers: dict[str, str]) -> dict[str, str]:
    """Create one of each; return the ids that stand in paths."""
    with httpx.Client(base_url=url, headers=headers) as client:
        made = client.post("/v1/endpoints", json={"tenant": "acme", "url": URL}).json()
        done = client.post("/v1/events", **event_of("acme")).json()
        client.put("/v1/event-types/invoice.paid", json={})
        key = client.post("/v1/keys", json={"name": "k", "scope": "read"}).json()
        operation = client.post(
            "/v1/operations", json={"kind": "cancel", "since": "2026-11-29T08:00:00Z"}
        ).json()
    return {
        "operation_id": operation["id"],
        "tenant_id": "acme",
        "endpoint_id": made["id"],
        "event_id": done["id"],
        "delivery_id": done["deliveries"][0],
        "key_id": key["id"],
        "name": "invoice.paid",
    }


def _probe(operation: Any, mode: GenerationMode, url: str, **fixed: Any) -> set[int]:
    """Send generated requests; return the statuses of the answers."""
    headers = fixed.pop("headers")
    seen: set[int] = set()

    @GENERATED
    @given(case=operation.as_strategy(generation_mode=mode, **fixed))
    def probe(case: schemathesis.Case) -> None:
        response = case.call(base_url=url, headers=headers)
        seen.add(response.status_code)
        case.validate_response(response, checks=CHECKS)

    probe()
    return seen


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_generated_requests_get_documented_answers_and_no_5xx(
    live: tuple[LiveApi, dict[str, str]], mode: GenerationMode
) -> None:
    server, keys = live
    headers = {"authorization": f"Bearer {keys['admin']}"}
    things = _things(server.url, headers)
    schema = schemathesis.openapi.from_dict(server.app.openapi())
    seen: dict[str, set[int]] = {}
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path == "/readyz":
            continue  # no worker runs here, so 503 is the right answer
        names = [name for name in things if f"{{{name}}}" in operation.path]
        fixed = {"path_parameters": {name: things[name] for name in names}} if names else {}
        try:
            seen[operation.label] = _probe(operation, mode, server.url, headers=headers, **fixed)
        except Unsatisfiable:
            assert mode is GenerationMode.NEGATIVE  # nothing about it can be wrong
    assert len(seen) >= 20
    if mode is GenerationMode.POSITIVE:  # otherwise it would only have tested refusals
        accepted = [label for label, statuses in seen.items() if min(statuses) < 300]
        assert len(accepted) >= 20, seen
