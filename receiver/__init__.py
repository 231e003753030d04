"""The customer kit: verify webhooks and turn redelivery into exactly one effect."""

from typing import TYPE_CHECKING, Any

from receiver.answer import Answer
from receiver.errors import VerificationError
from receiver.gate import Gate
from receiver.keys import KeyRule
from receiver.memory import MemoryStore
from receiver.message import Message
from receiver.verify import Verifier
from receiver.windows import check_memory

if TYPE_CHECKING:
    from receiver.feed import MissedEvents
    from receiver.inbox import Inbox

__all__ = [
    "Answer",
    "Gate",
    "Inbox",
    "KeyRule",
    "MemoryStore",
    "Message",
    "MissedEvents",
    "VerificationError",
    "Verifier",
    "check_memory",
]


def __getattr__(name: str) -> Any:
    # Whoever verifies and claims only needs neither SQLAlchemy nor an HTTP client.
    if name == "Inbox":
        from receiver import inbox as module  # noqa: PLC0415 - see above
    elif name == "MissedEvents":
        from receiver import feed as module  # type: ignore[no-redef]  # noqa: PLC0415 - see above
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(module, name)
