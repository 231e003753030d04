"""Behind a relay of Meta's webhooks: each WhatsApp message has one effect.

A body may hold several messages, and the relay may send a body again, whole or regrouped: what
counts is each message's id; statuses, which have none, count by the delivery's. A failure answers
500, and the relay tries again. Run: ``uvicorn examples.relay_receiver:app``. Settings:
``APP_SECRET``, ``VERIFY_TOKEN`` and ``DATABASE_URL``.
"""

import os

from sqlalchemy import create_engine, text
from starlette.applications import Starlette
from starlette.routing import Route

from receiver import Gate, Message, Verifier
from receiver.contrib.asgi import webhook
from receiver.sql import SqlStore

engine = create_engine(os.environ.get("DATABASE_URL", "sqlite:///relay.sqlite3"))
store = SqlStore(engine)
store.create_table().run()
verifier = Verifier.meta(
    os.environ["APP_SECRET"],
    verify_token=os.environ.get("VERIFY_TOKEN"),
    source="whatsapp",
    endpoint="relay",
)


@webhook(verifier, Gate(store, lease=30))
def reply(message: Message) -> None:
    """Called once for each message of a body."""
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO replies (message) VALUES (:id)"), {"id": message.id})


app = Starlette(routes=[Route("/hooks", reply, methods=["GET", "POST"])])
