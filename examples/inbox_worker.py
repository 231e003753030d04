"""Answer at once, handle later: the inbox stores a message, a worker in the process handles it.

Run: ``uvicorn examples.inbox_worker:app``. Settings: ``WEBHOOK_SECRET`` and ``DATABASE_URL``.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

from sqlalchemy import Connection, create_engine, text
from starlette.applications import Starlette
from starlette.routing import Route

from receiver import Answer, Inbox, Message, Verifier
from receiver.contrib.asgi import webhook
from receiver.inbox import InboxMessage
from receiver.inboxworker import InboxWorker

engine = create_engine(os.environ.get("DATABASE_URL", "sqlite:///inbox.sqlite3"))
inbox = Inbox(engine)
inbox.create_table().run()


@inbox.handler("invoice.paid", transactional=True)
def paid(message: InboxMessage, connection: Connection) -> None:
    """The effect; it commits together with the message's completion."""
    connection.execute(text("INSERT INTO paid (message) VALUES (:key)"), {"key": message.key})


@webhook(Verifier.standard(os.environ["WEBHOOK_SECRET"], endpoint="inbox", types=["invoice.paid"]))
async def receive(message: Message) -> Answer:
    """Store, and answer 202; the same id with another body is refused."""
    added = await inbox.add(message)
    return Answer(422 if any(one.outcome == "mismatch" for one in added) else 202)


@contextlib.asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    """A worker beside the server; it finishes what it has begun when the server stops."""
    worker = InboxWorker(inbox, poll=0.5)
    task = asyncio.create_task(worker.run())
    yield
    worker.stop()
    await task


app = Starlette(routes=[Route("/hooks", receive, methods=["POST"])], lifespan=lifespan)
