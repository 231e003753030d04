"""Calls the API in this process, over ASGI, with keys of each kind."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
from fastapi import FastAPI

from delivery_service.bootstrap import Service
from delivery_service.clock import ManualClock

EXPIRY = datetime(2026, 11, 30, 9, tzinfo=UTC)
"""An hour less than a day after the tests' clock starts."""
URL = "https://hooks.example.com/in"
KINDS: dict[str, dict[str, Any]] = {
    "admin": {"scope": "admin"},
    "publish": {"scope": "publish"},
    "read": {"scope": "read"},
    "tenant": {"scope": "tenant", "tenant_id": "acme"},
    "other": {"scope": "tenant", "tenant_id": "globex"},
    "portal": {"scope": "tenant", "tenant_id": "acme", "portal": True, "expires_at": EXPIRY},
    "expired": {"scope": "admin", "expires_at": EXPIRY - timedelta(days=2)},
}


class Api:
    """A service, its application, and a client for it. ``pokes`` has an item for each call of
    on_publish."""

    def __init__(
        self, service: Service, clock: ManualClock, client: httpx.AsyncClient, app: FastAPI
    ) -> None:
        self.service = service
        self.database = service.database
        self.clock = clock
        self.client = client
        self.app = app
        self.keys: dict[str, str] = {}
        self.pokes: list[None] = []

    async def call(
        self, method: str, path: str, *, key: str | None = "admin", **options: Any
    ) -> httpx.Response:
        """Call with the key of a kind, a key's text, or None for no key."""
        headers = dict(options.pop("headers", {}))
        if key is not None:
            headers["authorization"] = f"Bearer {self.keys.get(key, key)}"
        return await self.client.request(method, path, headers=headers, **options)

    async def ok(self, method: str, path: str, **options: Any) -> Any:
        """Call, expect success, and return the JSON of the answer."""
        answer = await self.call(method, path, **options)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    async def problem(self, status: int, method: str, path: str, **options: Any) -> dict[str, Any]:
        """Call, expect a problem document of that status, and return it."""
        answer = await self.call(method, path, **options)
        assert answer.status_code == status, answer.text
        return problem_in(answer)

    async def endpoint(self, tenant: str = "acme", **members: Any) -> dict[str, Any]:
        """Create an endpoint."""
        body = {"tenant": tenant, "url": URL, **members}
        created: dict[str, Any] = await self.ok("POST", "/v1/endpoints", json=body)
        return created

    async def publish(
        self,
        tenant: str = "acme",
        event_type: str = "invoice.paid",
        data: str = "{}",
        **members: Any,
    ) -> dict[str, Any]:
        """Publish an event with ``data`` as JSON text."""
        request = event(tenant, event_type, data, **members)
        done: dict[str, Any] = await self.ok("POST", "/v1/events", **request)
        return done

    async def delivery(self, **members: Any) -> str:
        """Publish to the endpoints of acme; return the id of the first delivery."""
        return (await self.publish(**members))["deliveries"][0]


def event(
    tenant: str = "acme", event_type: str = "invoice.paid", data: str = "{}", **members: Any
) -> dict[str, Any]:
    """The arguments of a request that publishes ``data``, JSON text, as it is."""
    head = json.dumps({"tenant": tenant, "type": event_type, **members})
    content = f'{head[:-1]}, "data": {data}}}'.encode()
    return {"content": content, "headers": {"content-type": "application/json"}}


def problem_in(answer: httpx.Response) -> dict[str, Any]:
    """The problem document of an answer, checked for what all have in common."""
    assert answer.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = answer.json()
    assert document["status"] == answer.status_code
    assert document["type"].startswith("urn:surehook:problem:")
    assert document["title"]
    assert document["detail"]
    assert document["instance"].endswith(answer.headers["x-request-id"])
    for error in document.get("errors", ()):
        assert set(error) == {"in", "pointer", "detail"}
        assert error["pointer"].startswith("#")
    return document


@asynccontextmanager
async def open_api(
    service: Service, clock: ManualClock, keys: dict[str, str]
) -> AsyncIterator[Api]:
    """Open the API of a service. ``keys``: the key of each kind."""
    app = service.api(lambda: api.pokes.append(None))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://surehook.test") as client:
        api = Api(service, clock, client, app)
        api.keys = keys
        yield api
