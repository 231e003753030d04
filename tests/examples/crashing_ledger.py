"""The example ``ledger``, dying at random: before its effect, after it, and after the commit.

Served as ``tests.examples.crashing_ledger:app``, or run as a program that books what is in the
feed of missed events. ``CRASH_SEED`` and ``CRASH_RATE`` say when it dies.
"""

from __future__ import annotations

import os
import random
from typing import Any

import httpx

from examples import ledger
from receiver import Gate, MissedEvents

_chance = random.Random(os.environ["CRASH_SEED"])
_rate = float(os.environ["CRASH_RATE"])
_book = ledger.book.receiver.handler


def die_perhaps() -> None:
    """Die as a killed process does: nothing is closed, rolled back or flushed."""
    if _chance.random() < _rate:
        os._exit(9)


def book(message: Any, session: Any) -> None:
    die_perhaps()
    _book(message, session)
    session.flush()
    die_perhaps()


ledger.book.receiver.handler = book


async def app(scope: Any, receive: Any, send: Any) -> None:
    async def send_perhaps(event: Any) -> None:
        if event["type"] == "http.response.start":
            die_perhaps()
        await send(event)

    await ledger.app(scope, receive, send_perhaps)


def drain() -> None:
    headers = {"authorization": f"Bearer {os.environ['HOOKS_KEY']}"}
    scope = ledger.book.receiver.verifier.scope
    with httpx.Client(base_url=os.environ["HOOKS_URL"], headers=headers) as client:
        feed = MissedEvents(client, os.environ["HOOKS_ENDPOINT"], scope=scope, limit=20)
        gate = Gate(ledger.store)
        drained = feed.drain(gate, book, transaction=ledger.book.receiver._transaction).run()
        die_perhaps()
    print("drained", drained.handled, drained.duplicates, drained.failed, drained.blocked)


if __name__ == "__main__":
    drain()
