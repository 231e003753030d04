"""How much is waiting, and for whom. Since when it waits is told by `workers.pulse`."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, func, select

from sender.tables import endpoints, queue
from sender.types import moment


def due(connection: Connection, most: int, now: datetime | None = None) -> int:
    """Count the due rows, up to ``most``: an exact count of millions would cost seconds."""
    rows = select(queue.c.due_at).where(queue.c.due_at <= moment(now)).limit(most).subquery()
    return connection.execute(select(func.count()).select_from(rows)).scalar_one()


def circuits(connection: Connection) -> dict[str, int]:
    """Number of enabled endpoints by the state of their circuit."""
    found = connection.execute(
        select(endpoints.c.circuit, func.count())
        .where(endpoints.c.deleted_at.is_(None), endpoints.c.status == "enabled")
        .group_by(endpoints.c.circuit)
    )
    return {row[0]: row[1] for row in found}
