"""The metrics of this process, for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from delivery_service.api.auth import authenticate, check_scope
from delivery_service.api.context import Here
from delivery_service.store.keys import Scope

# Not in the document: it is no operation of the API, and its answer is Prometheus's own format.
routes = APIRouter(include_in_schema=False)


@routes.get("/metrics")
async def metrics(context: Here, request: Request) -> Response:
    """Show the metrics, to keys of scope admin and read, or to everybody if the settings say so.

    A scraper gives the key as `authorization: {credentials: shk_…}` of its scrape configuration.
    """
    if not context.settings.metrics_public:
        check_scope(await authenticate(request, context), (Scope.ADMIN, Scope.READ))
    body, content_type = context.metrics.render()
    return Response(body, headers={"content-type": content_type})
