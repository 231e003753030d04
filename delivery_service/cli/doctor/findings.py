"""What the doctor found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: what, how it is, and what to do about it."""

    about: str
    level: Level
    text: str


def ok(about: str, text: str) -> Finding:
    """It is as it should be."""
    return Finding(about, Level.OK, text)


def warning(about: str, text: str) -> Finding:
    """It works, but somebody should look at it."""
    return Finding(about, Level.WARNING, text)


def failure(about: str, text: str) -> Finding:
    """Deliveries suffer from it, or will."""
    return Finding(about, Level.FAILURE, text)
