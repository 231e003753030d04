"""What an endpoint can be told beside its verifier, gate and handler, and the memory it needs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TypeAlias, TypedDict

from receiver.drive import AnyContext
from receiver.gate import DEFAULT_TTL, Gate
from receiver.verify import Verifier
from receiver.windows import Window, check_memory, window_of
from wire.contract import Contract

__all__ = ["Handler", "Settings", "memory"]

Handler: TypeAlias = Callable[..., object]


class Settings(TypedDict, total=False):
    """What every endpoint can be told; see `receiver.handle.Receiver`."""

    transaction: Callable[[], AnyContext]
    sender: Window | Contract
    ttl: float
    lease: float
    busy_status: int
    mismatch_status: int


def memory(gate: Gate, verifier: Verifier, settings: Settings) -> float:
    """The memory to use, in seconds, checked against what the sender may repeat.

    Raises `ConfigurationError` for one that is too short.
    """
    window = window_of(settings.get("sender") or verifier.source)
    ttl = settings.get("ttl")
    if ttl is None and gate.ttl == DEFAULT_TTL:
        return max(gate.ttl, window.recommended(verifier.tolerance).total_seconds())
    seconds = gate.ttl if ttl is None else ttl
    check_memory(timedelta(seconds=seconds), window, tolerance=verifier.tolerance)
    return seconds
