"""Flask with stored responses: a duplicate gets the first answer, a failed handler frees the key.

Run: ``flask --app examples.idempotent_flask run``. Settings: ``WEBHOOK_SECRET``, ``DATABASE_URL``.
"""

import os

from flask import Flask
from sqlalchemy import create_engine, text

from receiver import Gate, Message, Verifier
from receiver.contrib.flask import webhook
from receiver.sql import SqlStore

engine = create_engine(os.environ.get("DATABASE_URL", "sqlite:///flask.sqlite3"))
store = SqlStore(engine)
store.create_table().run()
app = Flask(__name__)


@app.post("/hooks")
@webhook(Verifier.standard(os.environ["WEBHOOK_SECRET"], endpoint="flask"), Gate(store))
def charge(message: Message) -> dict[str, str]:
    """Charge a card, once; the receipt number is what every repeat gets, too."""
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO charges (message) VALUES (:id)"), {"id": message.id})
    return {"receipt": os.urandom(8).hex()}
