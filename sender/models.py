"""Event types as classes: pydantic models, or whatever looks like one.

::

    class InvoicePaid(BaseModel):
        \"\"\"An invoice was paid in full.\"\"\"

        event_type: ClassVar[str] = "invoice.paid"

        id: int
        total: Decimal

    publish(session, tenant="acme", event=InvoicePaid(id=1042, total=Decimal("1.10")))

Nothing here imports pydantic: an event is anything with ``event_type`` and ``model_dump_json``.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, ClassVar, Protocol

from sqlalchemy import ColumnElement, Connection, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from sender.errors import PublishError
from sender.sessions import connection_of
from sender.tables import event_types
from sender.types import moment
from wire.envelope import check_event_type
from wire.rawjson import RawJson


class EventModel(Protocol):
    """An event as an object of its event type's class."""

    event_type: ClassVar[str]

    def model_dump_json(self, *, by_alias: bool) -> str:
        """Return its data as JSON."""


def type_and_data(event: EventModel) -> tuple[str, RawJson]:
    """Return the event type and the data of a model's object.

    The data travels as the model writes it, by its aliases; it is not parsed and written again.

    Raises:
        PublishError: It is no such object.
        EnvelopeError: Its event type or its JSON can't be sent.
    """
    name = getattr(type(event), "event_type", None)
    if not isinstance(name, str) or not callable(getattr(event, "model_dump_json", None)):
        raise PublishError(
            "event must be an object of a model whose class has event_type, such as"
            f" event_type: ClassVar[str] = 'invoice.paid'; this is a {type(event).__name__}"
        )
    return check_event_type(name), RawJson(event.model_dump_json(by_alias=True))


def register_event_types(
    session: Session | Connection, models: Iterable[type[Any]], *, now: datetime | None = None
) -> list[str]:
    """Put the event types of models into the catalogue, in the transaction of ``session``.

    Sets the JSON Schema of each to that of the model, and the description to its docstring;
    whether and how data is validated, and the example, stay as they are. Types of no model stay as
    they are too. Returns the names of those that were new or different, so that a repeat at each
    start of a program changes nothing.

    Raises:
        PublishError: A class has no ``event_type`` or no ``model_json_schema``, or two classes
            have the same one.
        EnvelopeError: An ``event_type`` is none.
    """
    connection = connection_of(session)
    wanted = _by_name(list(models))
    if not wanted:
        return []
    at = moment(now)
    added = _add_new(connection, wanted, at)
    known = {
        row.name: row
        for row in connection.execute(
            select(event_types)
            .where(event_types.c.name.in_(wanted.keys() - added))
            .order_by(event_types.c.name)
            .with_for_update()
        )
    }
    changed = added | {
        name
        for name, row in known.items()
        if any(getattr(row, column) != value for column, value in wanted[name].items())
    }
    for name in changed - added:
        connection.execute(
            update(event_types)
            .where(event_types.c.name == name)
            .values(updated_at=at, **wanted[name])
        )
    return [name for name in wanted if name in changed]


def _add_new(
    connection: Connection, wanted: dict[str, dict[str, Any]], at: ColumnElement[Any]
) -> set[str]:
    """Insert the types that are not there, unless another process is just doing so, and return
    their names. In one order for all, or two processes could each wait for the other."""
    insert = (sqlite if connection.dialect.name == "sqlite" else postgresql).insert
    return set(
        connection.scalars(
            insert(event_types)
            .values(created_at=at, updated_at=at)
            .on_conflict_do_nothing()
            .returning(event_types.c.name),
            [{"name": name, **values} for name, values in sorted(wanted.items())],
        )
    )


def _by_name(models: Sequence[type[Any]]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for model in models:
        name = getattr(model, "event_type", None)
        if not isinstance(name, str) or not callable(getattr(model, "model_json_schema", None)):
            raise PublishError(
                f"{getattr(model, '__name__', model)!s} must be a model with an event_type"
            )
        if check_event_type(name) in found:
            raise PublishError(f"two of the models have the event_type {name!r}")
        # As it is published: by aliases, and with what the model computes.
        schema = model.model_json_schema(by_alias=True, mode="serialization")
        description = inspect.cleandoc(model.__doc__ or "")
        found[name] = {"schema": schema, "description": description, "archived_at": None}
    return found
