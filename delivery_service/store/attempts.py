"""Attempts: one row for each request, never changed afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, select

from sender.tables import attempts


def insert(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Store attempts. ``rows`` have a value for every column of the table."""
    if rows:
        connection.execute(attempts.insert(), rows)


def existing(connection: Connection, attempt_ids: Sequence[str]) -> set[str]:
    """Return those of the ids that are stored."""
    return set(connection.scalars(select(attempts.c.id).where(attempts.c.id.in_(attempt_ids))))


def of_delivery(connection: Connection, delivery_id: str) -> list[dict[str, Any]]:
    """Return the attempts of a delivery, in order; late ones beside those of their number."""
    rows = connection.execute(
        select(attempts)
        .where(attempts.c.delivery_id == delivery_id)
        .order_by(attempts.c.number, attempts.c.started_at, attempts.c.id)
    )
    return [row._asdict() for row in rows]
