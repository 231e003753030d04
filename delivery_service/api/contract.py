"""The wire contract, for receivers to check their dedup memory against."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel

from delivery_service.api.context import Here
from delivery_service.api.problems import responses
from delivery_service.settings import Settings
from wire.contract import Contract
from wire.schedule import MAX_HORIZON, RetrySchedule

routes = APIRouter(tags=["contract"], responses=responses(500))


class PublishedContract(BaseModel):
    """What this sender promises; durations in whole seconds."""

    version: int
    schedule_seconds: list[int | float]
    max_attempts: int
    horizon_seconds: int
    replay_window_seconds: int
    postponement_seconds: int
    tolerance_seconds: int
    min_dedup_ttl_seconds: int
    profiles: list[str]
    header_prefix: str


@routes.get("/.well-known/webhooks")
async def read_contract(context: Here) -> PublishedContract:
    """Show the platform's schedule, replay window, profiles and tolerance.

    Tenants and endpoints may have schedules of their own.
    """
    shown: dict[str, Any] = contract_of(context.settings).to_dict()
    return PublishedContract(**shown)


def contract_of(settings: Settings) -> Contract:
    """Return the contract that the settings make.

    An open circuit or a `Retry-After` can hold an endpoint back only while it is failing, and
    failing for `disable_after` disables it; one last wait may have started before that.
    """
    # Without that limit the wait has none: the longest schedule is the nearest honest figure.
    failing = settings.disable_after or MAX_HORIZON
    last_wait = max(settings.circuit_longest_pause, settings.retry_after_cap)
    return Contract(
        schedule=RetrySchedule.parse(settings.schedule),
        replay_window=settings.replay_window,
        profiles=tuple(settings.profiles),
        tolerance=settings.tolerance,
        postponement=failing + last_wait,
        header_prefix=settings.header_prefix,
    )
