"""How far an attempt has come, noted by the layers below so that a failure can be named."""

from __future__ import annotations

from contextvars import ContextVar
from enum import StrEnum


class Phase(StrEnum):
    """Where an attempt is; the text completes "the deadline passed …"."""

    STARTING = "before the attempt began"
    QUEUED = "while waiting for a free connection"
    RESOLVING = "while resolving the name"
    CONNECTING = "while connecting"
    HANDSHAKE = "while connecting or during the TLS handshake"
    ANSWER = "while waiting for the answer"


class Progress:
    """The state of one attempt. ``phase`` is ``ANSWER`` as soon as anything may be written.

    ``opened`` says that a connection was opened for it.
    """

    __slots__ = ("opened", "phase")

    def __init__(self) -> None:
        self.phase = Phase.STARTING
        self.opened = False


# A context variable, because aiohttp and httpx pass nothing of ours through to the connection. A
# look-up runs in a task of its own and may serve several attempts, so it never touches this.
PROGRESS: ContextVar[Progress] = ContextVar("surehook_attempt_progress")
