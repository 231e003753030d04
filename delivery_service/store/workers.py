"""Workers seen: for people and health checks only. No work is ever assigned by it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, delete, func, select, update

from delivery_service.store.lag import due_since
from sender.tables import workers
from sender.types import later, moment


def seen(
    connection: Connection, worker_id: str, host: str, pid: int, now: datetime | None = None
) -> None:
    """Note that a worker is alive; the first note also says when it started."""
    known = connection.execute(
        update(workers).where(workers.c.id == worker_id).values(seen_at=moment(now))
    )
    if not known.rowcount:
        connection.execute(
            workers.insert().values(
                id=worker_id, host=host, pid=pid, started_at=moment(now), seen_at=moment(now)
            )
        )


def forget(connection: Connection, worker_id: str) -> None:
    """Remove a worker that stopped."""
    connection.execute(delete(workers).where(workers.c.id == worker_id))


def forget_unseen(connection: Connection, age: timedelta, now: datetime | None = None) -> None:
    """Remove workers that were not seen for ``age``."""
    connection.execute(delete(workers).where(workers.c.seen_at < later(-age.total_seconds(), now)))


def all_seen(connection: Connection) -> list[dict[str, Any]]:
    """Return the workers, last seen first."""
    rows = connection.execute(select(workers).order_by(workers.c.seen_at.desc()))
    return [row._asdict() for row in rows]


def pulse(connection: Connection, now: datetime | None = None) -> dict[str, datetime | None]:
    """Return the database's time ``now``, since when the ``oldest_due`` delivery could have been
    sent (if one could) and when a worker was ``last_seen`` (if one was)."""
    oldest_due = due_since(connection, now)
    row = connection.execute(
        select(
            moment(now).label("now"),
            select(func.max(workers.c.seen_at)).scalar_subquery().label("last_seen"),
        )
    ).one()
    return {"now": row.now, "oldest_due": oldest_due, "last_seen": row.last_seen}


def time(connection: Connection, now: datetime | None = None) -> datetime:
    """Return ``now``, or the database's time where it is None."""
    at: datetime = connection.execute(select(moment(now))).scalar_one()
    return at
