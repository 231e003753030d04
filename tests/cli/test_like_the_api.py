"""What the API refuses is refused on the command line too, and for the same reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import func, select

from delivery_service.store import event_types
from sender import tables
from tests.cli.conftest import Operator

SCHEMA = {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}}
PUBLISH = ("publish", "--tenant", "acme", "--type", "invoice.paid")


def _catalogue(operator: Operator, **values: Any) -> None:
    with operator.engine.begin() as connection:
        event_types.put(connection, "invoice.paid", {"schema": SCHEMA, **values})


def _published(operator: Operator) -> int:
    with operator.engine.begin() as connection:
        return connection.scalars(select(func.count()).select_from(tables.events)).one()


@pytest.mark.parametrize(
    ("data", "named"), [("{}", "data: 'id' is a required"), ('{"id":"x"}', "data/id: 'x' is not")]
)
def test_publish_refuses_what_the_catalogue_refuses(
    operator: Operator, data: str, named: str
) -> None:
    _catalogue(operator, validation="refuse")
    assert named in operator.error(*PUBLISH, "--data", data)
    # A type that was archived is off the list, and goes on being validated.
    with operator.engine.begin() as connection:
        event_types.archive(connection, "invoice.paid")
    assert named in operator.error(*PUBLISH, "--data", data)
    assert _published(operator) == 0
    operator.run(*PUBLISH, "--data", '{"id": 1}')
    operator.run("publish", "--tenant", "acme", "--type", "invoice.void", "--data", data)
    assert _published(operator) == 2


def test_publish_warns_where_the_catalogue_warns(operator: Operator) -> None:
    _catalogue(operator, validation="warn")
    warned = operator.run(*PUBLISH, "--data", "{}", "--json")
    (warning,) = json.loads(warned.stdout)["warnings"]
    assert warning.startswith("#/data: ")
    assert warned.stderr == f"surehook: {warning}\n"
    assert "warnings" not in operator.json(*PUBLISH, "--data", '{"id": 1}')
    _catalogue(operator, validation="off")
    assert "warnings" not in operator.json(*PUBLISH, "--data", "{}")
    assert _published(operator) == 3


def test_a_body_without_an_envelope_is_not_judged_by_the_catalogue(
    operator: Operator, tmp_path: Any
) -> None:
    _catalogue(operator, validation="refuse")
    (tmp_path / "body.json").write_text("{}")
    operator.run(*PUBLISH, "--body", "body.json")
    assert _published(operator) == 1
