"""Workers look at once for what is due, instead of at their next look at the queue."""

from __future__ import annotations

from sqlalchemy import Connection, func, select
from sqlalchemy.orm import Session

from sender.sessions import connection_of

CHANNEL = "surehook_due"
"""PostgreSQL's notification channel, one for each database."""


def poke_workers(session: Session | Connection) -> None:
    """Have all workers look for what is due at once, instead of within the setting `poll_interval`.

    For after the commit of a transaction that published, in a transaction of its own::

        with Session(engine) as session, session.begin():
            publish(session, …)
        with Session(engine) as session, session.begin():
            poke_workers(session)

    Not in the one that publishes: PostgreSQL commits transactions that notify one after the other,
    in its whole cluster, which made publishing three times as slow
    (docs/decisions/0001-queue-table.md). It is a hint: where it is lost or left out, the next look
    finds the same. Does nothing on SQLite, whose workers only look.
    """
    connection = connection_of(session)
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_notify(CHANNEL, "")))
