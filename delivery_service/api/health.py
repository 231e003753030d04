"""Health: whether the process is up, and whether deliveries flow."""

from __future__ import annotations

from datetime import datetime

from fastapi import APIRouter
from pydantic import BaseModel, Field

from delivery_service.api.context import Here
from delivery_service.api.problems import Problem, responses
from delivery_service.store import workers

routes = APIRouter(tags=["health"], responses=responses(500))


class Up(BaseModel):
    """The process answers."""

    status: str = Field(default="ok", examples=["ok"])


class Ready(BaseModel):
    """Deliveries flow."""

    status: str = Field(default="ready", examples=["ready"])
    oldest_due_age: float = Field(
        description="Seconds that the oldest due delivery has waited; 0 when none is due."
    )
    worker_seen_age: float | None = Field(description="Seconds since a worker was last seen.")


@routes.get("/healthz")
async def up() -> Up:
    """Tell that this process is up; says nothing about the database or workers."""
    return Up()


@routes.get("/readyz", responses=responses(503))
async def ready(context: Here) -> Ready:
    """Tell whether deliveries flow: the age of the oldest due one, and of the last sign of a
    worker. 503 when either is too old, no worker was ever seen, or the database is away."""
    pulse = await context.read(workers.pulse, context.now)
    now = pulse["now"]
    due_age = _age(now, pulse["oldest_due"])
    seen_age = _age(now, pulse["last_seen"])
    settings = context.settings
    reasons = []
    if seen_age is None:
        reasons.append("no worker was ever seen: start one with `surehook worker`")
    elif seen_age > settings.ready_worker_age.total_seconds():
        reasons.append(f"no worker was seen for {seen_age:.0f} s")
    if due_age is not None and due_age > settings.ready_due_age.total_seconds():
        reasons.append(f"the oldest due delivery has waited for {due_age:.0f} s")
    answer = Ready(oldest_due_age=due_age or 0.0, worker_seen_age=seen_age)
    if reasons:
        members = {**answer.model_dump(exclude={"status"}), "reasons": reasons}
        raise Problem(503, "not-ready", f"Not ready: {'; '.join(reasons)}.", members=members)
    return answer


def _age(now: datetime | None, then: datetime | None) -> float | None:
    if now is None or then is None:
        return None
    return max(0.0, (now - then).total_seconds())
