"""The command line offers what the API does: the same filters, with the same choices."""

from __future__ import annotations

import json
from datetime import timedelta
from enum import EnumType
from typing import Any, Literal, get_args, get_origin

import pytest
import typer
from pydantic import BaseModel
from sqlalchemy import select, update

from delivery_service.api.schemas.deliveries import DeliveryFilter
from delivery_service.api.schemas.endpoints import EndpointFilter
from delivery_service.api.schemas.keys import KeyFilter
from delivery_service.api.schemas.operations import (
    OF_BROADCAST,
    OF_DELIVERIES,
    NewOperation,
    OperationFilter,
)
from delivery_service.cli import app
from delivery_service.store import bulk, event_types
from sender import tables
from tests.cli.conftest import Operator
from wire.ids import id_time

OF_RUNNING = {"wait", "json", "idempotency_key"}
"""Options that are about the command, and not about what it works on (the key is a header in the
API)."""


def _options(*names: str) -> dict[str, Any]:
    """The options of a command by the names that the API has for them."""
    command: Any = typer.main.get_command(app)
    for name in names:
        command = command.commands[name]
    found = {each.opts[0].removeprefix("--").replace("-", "_"): each for each in command.params}
    return {"cursor" if name == "before" else name: each for name, each in found.items()}


def _choices(option: Any) -> set[str]:
    kind = option.type_descriptor.annotation
    if get_origin(kind) is Literal:
        return set(get_args(kind))
    return {each.value for each in kind} if isinstance(kind, EnumType) else set()


def _permitted(model: type[BaseModel], name: str) -> set[str]:
    schema = model.model_json_schema()["properties"][name]
    return {each for kind in schema.get("anyOf", [schema]) for each in kind.get("enum", ())}


@pytest.mark.parametrize(
    ("group", "model"),
    [
        ("deliveries", DeliveryFilter),
        ("endpoint", EndpointFilter),
        ("keys", KeyFilter),
        ("operations", OperationFilter),
    ],
)
def test_lists_have_the_filters_of_the_api(group: str, model: type[BaseModel]) -> None:
    options = _options(group, "list")
    if group == "deliveries":
        options["event_type"] = options.pop("type")
    assert options.keys() - {"json"} == model.model_fields.keys()
    for name in model.model_fields:
        assert _choices(options[name]) == _permitted(model, name), name


def test_every_kind_of_operation_can_be_started() -> None:
    commands: Any = typer.main.get_command(app)
    assert set(get_args(bulk.Kind)) <= commands.commands.keys()


@pytest.mark.parametrize("kind", [bulk.RECOVER, bulk.REPLAY, bulk.CANCEL])
def test_operations_on_deliveries_take_what_the_api_takes(kind: str) -> None:
    options = _options(kind)
    options["event_type"] = options.pop("type")
    # The API refuses status and reason for what is pending by nature, and `delivered` for a
    # recovery.
    states = _permitted(NewOperation, "status")
    status = {bulk.RECOVER: states - {"delivered"}, bulk.REPLAY: states, bulk.CANCEL: set()}[kind]
    expected = {*OF_DELIVERIES, "dry_run"} - (set() if status else {"status", "reason"})
    assert options.keys() - OF_RUNNING == expected
    assert (_choices(options["status"]) if status else set()) == status


def test_a_broadcast_takes_what_the_api_takes() -> None:
    assert _options(bulk.BROADCAST).keys() - OF_RUNNING == {*OF_BROADCAST, "dry_run"}


def test_deliveries_by_each_of_the_filters(operator: Operator) -> None:
    operator.endpoint()
    waiting, dead, copy = (operator.publish()["deliveries"][0] for _ in range(3))
    now = id_time(waiting)
    with operator.engine.begin() as connection:
        for delivery_id, values in {
            waiting: {"attempts": 2, "last_outcome": "timeout"},
            dead: {
                "status": "dead", "reason": "schedule_used_up", "undelivered": True,
                "attempts": 6, "last_outcome": "status", "ended_at": now + timedelta(minutes=5),
            },
        }.items():  # fmt: skip
            its = tables.deliveries.c.id == delivery_id
            connection.execute(update(tables.deliveries).where(its).values(**values))
        connection.execute(tables.queue.delete().where(tables.queue.c.delivery_id == dead))
        # As "send as new" leaves it.
        event_id = connection.scalar(
            select(tables.deliveries.c.event_id).where(tables.deliveries.c.id == dead)
        )
        its = tables.deliveries.c.id == copy
        connection.execute(
            update(tables.deliveries).where(its).values(copy_of=dead, event_id=event_id)
        )
        held = tables.queue.c.delivery_id == copy
        connection.execute(update(tables.queue).where(held).values(lease_token="lease"))

    def listed(*options: str) -> set[str]:
        return {row["id"] for row in operator.json("deliveries", "list", *options)}

    assert listed() == {waiting, dead, copy}
    assert listed("--reason", "schedule_used_up") == {dead}
    assert listed("--last-outcome", "timeout") == {waiting}
    assert listed("--min-attempts", "2") == {waiting, dead}
    assert listed("--min-attempts", "2", "--max-attempts", "5") == {waiting}
    assert listed("--in-flight") == {copy}
    assert listed("--no-in-flight") == {waiting, dead}
    assert listed("--copy-of", dead) == {copy}
    assert listed("--ended-since", "1h") == {dead}
    assert listed("--ended-until", "1h") == set()
    assert listed("--status", "dead", "--ended-until", "2100-01-01T00:00:00Z") == {dead}
    assert "ended-since" in operator.error("deliveries", "list", "--ended-since", "soon")


def test_keys_endpoints_and_operations_by_their_filters(operator: Operator) -> None:
    operator.endpoint()
    admin = operator.json("keys", "create")["id"]
    tenant = operator.json("keys", "create", "--scope", "tenant", "--tenant", "acme")["id"]

    def keys(*options: str) -> set[str]:
        return {row["id"] for row in operator.json("keys", "list", *options)}

    assert keys() == keys("--no-portal") == {admin, tenant}
    assert keys("--tenant", "acme") == keys("--scope", "tenant") == {tenant}
    assert keys("--portal") == set()
    assert operator.json("endpoint", "list", "--uid", "none") == []
    queued = operator.json("cancel", "--since", "1h", "--no-wait")["id"]
    for options, expected in {
        ("--kind", "cancel"): [queued],
        ("--kind", "recover"): [],
        ("--status", "queued"): [queued],
        ("--status", "done"): [],
    }.items():
        rows = operator.json("operations", "list", *options)
        assert [row["id"] for row in rows] == expected


def test_cancel_of_many(operator: Operator) -> None:
    operator.endpoint()
    ids = {operator.publish()["deliveries"][0] for _ in range(3)}
    other = operator.publish("invoice.void")["deliveries"][0]
    where = ("cancel", "--since", "1h", "--type", "invoice.paid")
    assert operator.json(*where, "--dry-run") == {
        "kind": "cancel", "matched": 3, "possible": 3, "passed_over": {},
    }  # fmt: skip
    pending = operator.json("deliveries", "list", "--status", "pending")
    assert {row["id"] for row in pending} == {*ids, other}
    done = operator.json(*where)
    assert (done["status"], done["done"]) == ("done", 3)
    cancelled = operator.json("deliveries", "list", "--status", "cancelled")
    assert {row["id"] for row in cancelled} == ids
    assert operator.json("recover", "--since", "1h", "--reason", "poison")["matched"] == 0
    timed_out = ("cancel", "--since", "1h", "--last-outcome", "timeout")
    assert operator.json(*timed_out)["matched"] == 0
    taken_back = operator.json("recover", "--since", "1h", "--reason", "cancelled")
    assert (taken_back["done"], taken_back["filter"]["reason"]) == (3, "cancelled")


def test_broadcast(operator: Operator) -> None:
    operator.endpoint()
    args = ("endpoint", "add", "--tenant", "globex", "--url", "http://127.0.0.1:9000/hook")
    operator.run(*args)
    what = ("broadcast", "--type", "terms.changed", "--data", '{"version": 2.50}')
    assert operator.json(*what, "--dry-run") == {
        "kind": "broadcast", "matched": 2, "possible": 2, "passed_over": {},
    }  # fmt: skip
    assert operator.json("deliveries", "list") == []
    done = operator.json(*what)
    assert (done["status"], done["done"]) == ("done", 2)
    assert "data" not in done
    found = operator.json("deliveries", "list", "--type", "terms.changed")
    assert {row["tenant_id"] for row in found} == {"acme", "globex"}
    with operator.engine.begin() as connection:
        bodies = connection.scalars(select(tables.events.c.body)).all()
        target = tables.audit_log.c.target == done["id"]
        actions = connection.scalars(select(tables.audit_log.c.action).where(target)).all()
    assert all(b'"data":{"version": 2.50}}' in body for body in bodies)
    assert actions == ["operation.created"]
    assert "done" in operator.run("operations", "show", done["id"]).stdout


def test_a_broadcast_that_can_not_be_published_is_refused(operator: Operator) -> None:
    operator.endpoint()
    schema = {"type": "object", "required": ["version"]}
    with operator.engine.begin() as connection:
        for name, validation in {"terms.changed": "refuse", "terms.noted": "warn"}.items():
            values = {"schema": schema, "validation": validation}
            event_types.put(connection, name, values)
    for dry in ((), ("--dry-run",)):
        refused = operator.error("broadcast", "--type", "terms.changed", "--data", "{}", *dry)
        assert "version" in refused
    assert "data" in operator.error("broadcast", "--type", "a.b", "--data", "{")
    assert "type" in operator.error("broadcast", "--type", "a b", "--data", "1")
    big = json.dumps("x" * 2_000_000)
    assert "bytes" in operator.error("broadcast", "--type", "a.b", "--data", big)
    assert operator.json("operations", "list") == []
    warned = operator.run("broadcast", "--type", "terms.noted", "--data", "{}", "--json")
    assert "version" in warned.stderr
    assert json.loads(warned.stdout)["done"] == 1
