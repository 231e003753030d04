"""Sums over measurements."""

from __future__ import annotations

from collections.abc import Sequence


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """The 50th, 95th and 99th percentile and the largest value."""
    if not values:
        raise ValueError("nothing was measured")
    ordered = sorted(values)

    def at(part: float) -> float:
        return ordered[min(len(ordered) - 1, int(len(ordered) * part))]

    return {"p50": at(0.5), "p95": at(0.95), "p99": at(0.99), "max": ordered[-1]}
