"""Who gets the free places of a worker: fairness between endpoints, and between the lanes of one.

A lane is one endpoint's first attempts (0) or its retries and bulk work (1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Lane = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Want:
    """Claim up to ``count`` due rows of a lane."""

    endpoint_id: str
    lane: int
    count: int


def allowance(in_flight: int, free: int, cap: int) -> int:
    """How many more requests an endpoint may have in flight.

    Never more than ``cap`` at a time, and never more than there are places ``free``: the dynamic
    threshold of Choudhury and Hahne (1998). One endpoint that does not answer holds at most half
    of all places, k of them at most k/(k+1), so there is always room for the others.
    """
    return max(0, min(cap, free) - in_flight)


def share(
    lanes: Sequence[Lane], free: int, allowances: Mapping[str, int], turn: int
) -> tuple[list[Want], str | None]:
    """Share ``free`` places among ``lanes``, in their order.

    ``allowances`` has the most that each endpoint can take. ``turn`` (any counter that goes up)
    decides which lane goes first where an endpoint has room for only one. Returns what to claim,
    and the endpoint at which the places ran out, if they did: the next round starts after it.
    """
    lanes_of: dict[str, list[int]] = {}
    for endpoint_id, lane in lanes:
        if allowances[endpoint_id] > 0:
            lanes_of.setdefault(endpoint_id, []).append(lane)
    wants: list[Want] = []
    last = None
    for position, (endpoint_id, its_lanes) in enumerate(lanes_of.items()):
        if free <= 0:
            return wants, last
        # An even share of what is left, so that rounding up never costs the last ones theirs.
        each = -(-free // (len(lanes_of) - position))
        room = min(each, allowances[endpoint_id])
        wants += _split(endpoint_id, its_lanes, room, turn)
        free -= room
        last = endpoint_id
    return wants, None


def _split(endpoint_id: str, lanes: list[int], room: int, turn: int) -> list[Want]:
    if len(lanes) == 1:
        return [Want(endpoint_id, lanes[0], room)]
    half, odd = divmod(room, 2)
    counts = {lane: half + (odd if lane == turn % 2 else 0) for lane in (0, 1)}
    return [Want(endpoint_id, lane, count) for lane, count in counts.items() if count]
