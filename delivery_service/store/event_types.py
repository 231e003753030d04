"""The catalogue of event types. A type need not be in it to be published."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select, update
from sqlalchemy.dialects import postgresql, sqlite

from sender.tables import event_types
from sender.types import moment


def put(
    connection: Connection, name: str, values: Mapping[str, Any], now: datetime | None = None
) -> bool:
    """Insert a type, or replace all its values; whether it was inserted."""
    insert = (sqlite if connection.dialect.name == "sqlite" else postgresql).insert
    at = moment(now)
    inserted = connection.scalars(
        insert(event_types)
        .values(name=name, created_at=at, updated_at=at, **values)
        .on_conflict_do_nothing()
        .returning(event_types.c.name)
    ).all()
    if not inserted:
        connection.execute(
            update(event_types).where(event_types.c.name == name).values(updated_at=at, **values)
        )
    return bool(inserted)


def archive(connection: Connection, name: str, now: datetime | None = None) -> None:
    """Take a type off the list, but go on validating it."""
    connection.execute(
        update(event_types)
        .where(event_types.c.name == name, event_types.c.archived_at.is_(None))
        .values(archived_at=moment(now), updated_at=moment(now))
    )


def get(connection: Connection, name: str) -> dict[str, Any] | None:
    """Return a type, archived or not, or None."""
    row = connection.execute(select(event_types).where(event_types.c.name == name)).one_or_none()
    return None if row is None else row._asdict()


def page(
    connection: Connection, *, limit: int, after: str | None = None, archived: bool = False
) -> list[dict[str, Any]]:
    """Return up to ``limit`` types in the order of their names; archived ones if asked for."""
    query = select(event_types).order_by(event_types.c.name).limit(limit)
    if not archived:
        query = query.where(event_types.c.archived_at.is_(None))
    if after is not None:
        query = query.where(event_types.c.name > after)
    return [row._asdict() for row in connection.execute(query)]


def validated(connection: Connection, name: str | None = None) -> list[dict[str, Any]]:
    """Return name, schema and validation of the types whose data is validated, archived ones too.

    ``name``: only of that one.
    """
    query = select(event_types.c.name, event_types.c.schema, event_types.c.validation).where(
        event_types.c.validation != "off", event_types.c.schema.is_not(None)
    )
    if name is not None:
        query = query.where(event_types.c.name == name)
    return [row._asdict() for row in connection.execute(query)]
