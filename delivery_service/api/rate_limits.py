"""The rate limit of an API key, shared by all processes through the database.

Header fields: draft-ietf-httpapi-ratelimit-headers-10.
"""

from __future__ import annotations

import math

from fastapi import Request

from delivery_service.api.context import Context
from delivery_service.api.problems import EXTRA_HEADERS, Problem
from delivery_service.store import keys

POLICY = "key"
"""The name of the policy in the header fields."""


async def count_request(request: Request, context: Context, key_id: str, limit: int) -> None:
    """Count a request of a key. Raises the problem 429 when its limit is used up.

    One transaction of its own, for keys with a limit only: what is refused or fails later counts
    too.
    """
    window = context.settings.key_rate_window
    admission = await context.write(keys.take, key_id, limit, window, context.now)
    wait = max(1, math.ceil(admission.reset))
    policy = f'"{POLICY}";q={limit};w={max(1, math.ceil(window.total_seconds()))}'
    state = f'"{POLICY}";r={admission.remaining};t={wait}'
    request.scope[EXTRA_HEADERS] = [
        (b"ratelimit-policy", policy.encode()),
        (b"ratelimit", state.encode()),
    ]
    if not admission.admitted:
        raise Problem(
            429,
            "rate-limited",
            f"This key may make {limit} requests in {window.total_seconds():g} s; try again in"
            f" {wait} s.",
            headers={"retry-after": str(wait)},
        )
