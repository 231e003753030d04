"""A network whose every answer is decided by the test: requests wait until they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from delivery_service.net.transport import PreparedRequest
from delivery_service.policy.outcome import Outcome, OutcomeKind

OUTCOMES: Mapping[str, Outcome | Exception] = {
    "200": Outcome(OutcomeKind.DELIVERED, 0.1, 200, may_have_arrived=True),
    "204": Outcome(OutcomeKind.DELIVERED, 0.1, 204, may_have_arrived=True),
    "400": Outcome(OutcomeKind.STATUS, 0.1, 400, may_have_arrived=True),
    "410": Outcome(OutcomeKind.STATUS, 0.1, 410, may_have_arrived=True),
    "429": Outcome(OutcomeKind.STATUS, 0.1, 429, retry_after="120", may_have_arrived=True),
    "500": Outcome(OutcomeKind.STATUS, 0.1, 500, may_have_arrived=True),
    "503": Outcome(OutcomeKind.STATUS, 0.1, 503, retry_after="99999", may_have_arrived=True),
    "302": Outcome(OutcomeKind.REDIRECT, 0.1, 302, may_have_arrived=True),
    "timeout": Outcome(OutcomeKind.TIMEOUT, 15.0, may_have_arrived=True),
    "connect": Outcome(OutcomeKind.CONNECT, 0.1, error="refused"),
    "blocked": Outcome(OutcomeKind.BLOCKED, 0.0, error="10.0.0.1 is private"),
    "internal": RuntimeError("a fault of our own"),
}


@dataclass(eq=False)
class Exchange:
    """A request that was sent and has no answer yet."""

    request: PreparedRequest
    answer: asyncio.Future[Outcome] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class ScriptedTransport:
    """A `Transport` whose requests stay in flight until ``answer`` ends them."""

    connections_opened = 0
    connections_reused = 0

    def __init__(self) -> None:
        self.last: Exchange | None = None
        self.sent = asyncio.Event()

    async def send(self, request: PreparedRequest, deadline: float) -> Outcome:
        self.last = Exchange(request)
        self.sent.set()
        return await self.last.answer

    async def close(self) -> None:
        pass


def answer(exchange: Exchange, name: str) -> None:
    """End a request with the outcome of that name."""
    outcome = OUTCOMES[name]
    if isinstance(outcome, Exception):
        exchange.answer.set_exception(outcome)
    else:
        exchange.answer.set_result(outcome)
