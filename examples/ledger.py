"""Bookkeeping: the message's receipt is a row of the transaction that books it.

Both commit or neither does, so each message is booked exactly once, whatever crashes.
Run: ``uvicorn examples.ledger:app``. Settings: ``WEBHOOK_SECRET`` and ``DATABASE_URL``.
"""

import os

from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, insert
from sqlalchemy.orm import Session, sessionmaker
from starlette.applications import Starlette
from starlette.routing import Route

from receiver import Gate, Message, Verifier
from receiver.contrib.asgi import webhook
from receiver.sql import SqlStore

engine = create_engine(os.environ.get("DATABASE_URL", "sqlite:///ledger.sqlite3"))
store = SqlStore(engine)
store.create_table().run()
metadata = MetaData()
entries = Table(
    "entries",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("message", String(255), nullable=False),
    Column("cents", Integer, nullable=False),
)


@webhook(
    Verifier.standard(os.environ["WEBHOOK_SECRET"], endpoint="ledger"),
    Gate(store, max_failures=20),
    transaction=sessionmaker(engine).begin,
)
def book(message: Message, session: Session) -> None:
    """Book an invoice. No commit: it happens together with the receipt."""
    cents = message.json()["data"]["cents"]
    session.execute(insert(entries).values(message=message.id, cents=cents))


app = Starlette(routes=[Route("/hooks", book, methods=["POST"])])
