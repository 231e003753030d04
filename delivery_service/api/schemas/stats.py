"""What became of an endpoint's attempts over time."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from delivery_service.api.schemas.common import Moment, Parameters, Shown, UtcMoment

Per = Literal["hour", "day"]


class StatsRange(Parameters):
    """Which time, in which steps."""

    per: Per = Field("hour", description="Length of a bucket.")
    since: Moment | None = Field(
        None, description="Rounded down to a bucket. Left out: 24 hours or 30 days before `until`."
    )
    until: Moment | None = Field(
        None, description="Rounded up to a bucket. Left out: now. At most 7 days of hours, 92 days."
    )


class StatsBucket(Shown):
    """The attempts that started within an hour or a day (in UTC)."""

    start: UtcMoment
    attempts: int
    delivered: int
    failed: int
    kinds: dict[str, int] = Field(
        description="Attempts by `kind`; those that there were none of are left out.",
        examples=[{"delivered": 41, "timeout": 2}],
    )
    mean_duration: float | None = Field(description="Seconds; null without attempts.")


class EndpointStats(Shown):
    """Attempts of an endpoint by outcome, one bucket after the other without gaps.

    Attempts that retention has removed do not count.
    """

    per: Per
    since: UtcMoment
    until: UtcMoment
    buckets: list[StatsBucket]
