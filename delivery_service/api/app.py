"""The API as an ASGI application."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute

from delivery_service.api import (
    audit,
    contract,
    deliveries,
    endpoints,
    event_types,
    events,
    feed,
    filters,
    health,
    keys,
    operations,
    ownership,
    problems,
    publishing,
    scraping,
    secrets,
    stats,
    tenants,
)
from delivery_service.api.boundary import Boundary
from delivery_service.api.context import Context
from wire.version import VERSION

ENVELOPE_ALLOWANCE = 16 * 1024
"""Bytes that a request may have beyond ``max_body_bytes``: tenant, type, key, and JSON around."""

BATCH_PATH = "/v1/events/batch"
BATCH_BYTES = 4 * 2**20
"""Bytes that a batch of events may have."""

DESCRIPTION = """
Sends webhooks: publish an event, and every endpoint that matches gets a signed request, retried
on a fixed schedule until it is accepted.

Lists are pages: give `next_cursor` as `cursor` for the next one. Times are RFC 3339 in UTC.
Errors are RFC 9457 problem documents.
"""


def create_app(context: Context) -> FastAPI:
    """Make the API. The caller opens and closes the database."""
    app = FastAPI(
        title="Surehook",
        version=VERSION,
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=_operation_id,
        separate_input_output_schemas=False,
    )
    app.state.surehook = context
    problems.install(app)
    limit = context.settings.max_body_bytes + ENVELOPE_ALLOWANCE
    app.add_middleware(Boundary, max_body_bytes=limit, larger={BATCH_PATH: max(limit, BATCH_BYTES)})
    for routes in (
        # First, because routes are tried in their order.
        publishing.routes,
        publishing.batch_routes,
        health.routes,
        scraping.routes,
        contract.routes,
        tenants.routes,
        endpoints.routes,
        secrets.routes,
        ownership.routes,
        stats.routes,
        filters.routes,
        event_types.routes,
        publishing.other_routes,
        events.routes,
        deliveries.routes,
        operations.routes,
        feed.routes,
        keys.routes,
        audit.routes,
    ):
        app.include_router(routes)
    _complete_openapi(app)
    return app


def _operation_id(route: APIRoute) -> str:
    return route.name


def _complete_openapi(app: FastAPI) -> None:
    """Add the problem document to the schemas, which no operation returns as a model."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = generate()
            schemas = document["components"]["schemas"]
            problem = problems.ProblemDocument.model_json_schema(
                ref_template="#/components/schemas/{model}"
            )
            schemas.update(problem.pop("$defs"))
            schemas["Problem"] = problem
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
