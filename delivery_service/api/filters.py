"""Trying a payload filter, before an endpoint has it."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from delivery_service.api.auth import Reader
from delivery_service.api.routing import body_problems, router
from delivery_service.api.schemas.common import Given, PayloadFilter, Shown
from sender.filters import fits

routes = router("endpoints")


class FilterTest(Given):
    """A filter, and data to try it on."""

    filter: PayloadFilter
    data: Any = Field(description="Data of an event.", examples=[{"total": 120, "country": "DE"}])


class FilterVerdict(Shown):
    """Whether an event with that data would be sent to an endpoint with that filter."""

    matches: bool


@routes.post("/filters/test", responses=body_problems())
async def check_payload_filter(_caller: Reader, body: FilterTest) -> FilterVerdict:
    """Try a payload filter on data. Nothing is stored or sent."""
    return FilterVerdict(matches=fits(body.filter, body.data))
