"""The customer kit: verify webhooks and turn redelivery into exactly one effect."""

from receiver.answer import Answer
from receiver.errors import VerificationError
from receiver.gate import Gate
from receiver.keys import KeyRule
from receiver.memory import MemoryStore
from receiver.message import Message
from receiver.verify import Verifier
from receiver.windows import check_memory

__all__ = [
    "Answer",
    "Gate",
    "KeyRule",
    "MemoryStore",
    "Message",
    "VerificationError",
    "Verifier",
    "check_memory",
]
