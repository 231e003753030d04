"""A worker of an inbox to be killed in the middle: run as a program.

Arguments: URL, way (``plain`` or ``transactional``), and whether it hangs after its effect.
"""

from __future__ import annotations

import asyncio
import sys
import time

from sqlalchemy import Connection, text

from receiver.inbox import Inbox, InboxMessage
from receiver.inboxworker import InboxWorker
from tests.receiver.stores.kinds import sync_engine

LEASE = 1.0


def make(url: str, way: str, hang: str) -> tuple[Inbox, InboxWorker]:
    """An inbox whose handler writes one row of effects."""
    engine = sync_engine(url)
    inbox = Inbox(engine, lease=LEASE, delays=[0, 0])
    worker = InboxWorker(inbox, poll=0.05)

    def reached() -> None:
        if hang == "hang":
            print("reached", flush=True)
            time.sleep(3600)

    if way == "plain":

        @inbox.handler("*")
        def handle(message: InboxMessage) -> None:
            with engine.begin() as connection:
                connection.execute(text("INSERT INTO effects (n) VALUES (1)"))
            reached()

    else:

        @inbox.handler("*", transactional=True)
        def handle_in(message: InboxMessage, connection: Connection) -> None:
            connection.execute(text("INSERT INTO effects (n) VALUES (1)"))
            reached()

    return inbox, worker


if __name__ == "__main__":
    asyncio.run(make(*sys.argv[1:])[1].run())
