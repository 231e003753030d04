"""What the API refuses is refused on the command line too, and for the same reason."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, update

from delivery_service.store import event_types, events
from sender import tables
from tests.cli.conftest import Operator
from tests.support.receiver import Receiver, echo_challenge
from wire.envelope import format_timestamp
from wire.ids import id_time
from wire.signature import verify

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


@pytest.fixture
def proving(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> Operator:
    """An operator of a service that wants proofs of ownership."""
    monkeypatch.setenv("SUREHOOK_REQUIRE_OWNERSHIP_PROOF", "true")
    return operator


def test_an_endpoint_is_verified_before_anything_is_sent(
    proving: Operator, receiver: Receiver
) -> None:
    added = proving.endpoint(receiver.url("/in"))
    assert (added["status"], added["disabled_reason"]) == ("disabled", "unverified")
    (before,) = proving.publish()["deliveries"]
    assert proving.json("deliveries", "show", before)["reason"] == "endpoint_unverified"
    assert "prove first" in proving.error("endpoint", "enable", added["id"])
    refused = proving.error("endpoint", "verify", added["id"])
    assert "answered 200, but not with the challenge" in refused
    assert proving.json("endpoint", "show", added["id"])["status"] == "disabled"
    receiver.script("/in", echo_challenge)
    proven = proving.json("endpoint", "verify", added["id"])
    assert (proven["status"], proven["disabled_reason"]) == ("enabled", None)
    assert proven["verified_at"]
    request = receiver.received("/in")[-1]
    verify(added["secret"], request.headers, request.body)
    (after,) = proving.publish()["deliveries"]
    assert proving.json("deliveries", "show", after)["status"] == "pending"
    # Once proven, it is enabled as others are.
    proving.run("endpoint", "disable", added["id"])
    proving.run("endpoint", "enable", added["id"])
    with proving.engine.begin() as connection:
        entries = connection.execute(select(tables.audit_log)).all()
    actions = [entry.action for entry in entries if entry.target == added["id"]]
    assert actions.count("endpoint.verified") == 1
    assert {entry.actor.partition(":")[0] for entry in entries} == {"cli"}


def test_a_person_is_told_what_to_do_next(proving: Operator, receiver: Receiver) -> None:
    receiver.script("/in", echo_challenge)
    added = proving.run("endpoint", "add", "--tenant", "acme", "--url", receiver.url("/in"))
    id_ = proving.json("endpoint", "list")[0]["id"]
    assert f"surehook endpoint verify {id_}" in added.stderr
    assert "unverified" in added.stdout
    assert "verified_at" in proving.run("endpoint", "verify", id_).stdout


def test_the_guard_judges_challenges(
    proving: Operator, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_ = proving.endpoint(receiver.url("/in"))["id"]
    monkeypatch.setenv("SUREHOOK_ALLOW_PRIVATE_NETWORKS", "false")
    assert "allow_private_networks" in proving.error("endpoint", "verify", id_)
    assert receiver.received("/in") == []


@pytest.mark.parametrize("text", ["x" * 1001, "a\x1b"])
def test_a_description_is_what_the_api_takes(operator: Operator, text: str) -> None:
    what = ("endpoint", "add", "--tenant", "acme", "--url", "http://127.0.0.1:9000/")
    assert "description" in operator.error(*what, "--description", text)
    assert operator.json("endpoint", "list") == []


def test_a_schedule_is_kept_as_over_the_api(operator: Operator) -> None:
    for given, kept in {"fast": "fast", "1m, 5m": "1m,5m", "": "[]"}.items():
        added = operator.endpoint("http://127.0.0.1:9000/", "--schedule", given)
        assert added["schedule"] == kept


def test_send_as_new_makes_a_copy_where_the_api_would(operator: Operator) -> None:
    endpoint = operator.endpoint()
    (delivery_id,) = operator.publish()["deliveries"]
    made = operator.json("deliveries", "send-as-new", delivery_id)
    assert made["copy_of"] == delivery_id
    shown = operator.json("deliveries", "show", made["id"])
    assert (shown["status"], shown["copy_of"]) == ("pending", delivery_id)
    assert made["id"] in operator.run("deliveries", "list").stdout
    operator.run("endpoint", "disable", endpoint["id"])
    assert "is disabled" in operator.error("deliveries", "send-as-new", delivery_id)


def test_publish_for_later_and_for_a_channel(operator: Operator) -> None:
    operator.endpoint()
    (waits,) = operator.json(*PUBLISH, "--data", "1", "--deliver-at", _in_an_hour())["deliveries"]
    (due,) = operator.json(*PUBLISH, "--data", "1", "--channel", "eu")["deliveries"]
    with operator.engine.begin() as connection:
        due_at = {row.delivery_id: row.due_at for row in connection.execute(tables.queue.select())}
        channels = connection.scalars(select(tables.events.c.channels)).all()
    assert due_at[waits] - due_at[due] > timedelta(minutes=50)
    assert sorted(channels, key=str) == [None, "eu"]
    assert "deliver_at" in operator.error(*PUBLISH, "--data", "1", "--deliver-at", "soon")
    assert "channel" in operator.error(*PUBLISH, "--data", "1", "--channel", "")
    assert _published(operator) == 2


def _in_an_hour() -> str:
    return format_timestamp(datetime.now(UTC) + timedelta(hours=1))


def test_redeliver_refuses_an_event_without_a_body(operator: Operator) -> None:
    operator.endpoint()
    published = operator.publish()
    (delivery_id,) = published["deliveries"]
    operator.run("deliveries", "cancel", delivery_id)
    with operator.engine.begin() as connection:
        assert events.delete_body(connection, published["id"])
    assert "body of this event was deleted" in operator.error(
        "deliveries", "redeliver", delivery_id
    )
    assert operator.json("deliveries", "show", delivery_id)["status"] == "cancelled"


def test_the_replay_window_begins_when_a_receiver_can_have_seen_it(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator.endpoint()
    published = operator.publish()
    (delivery_id,) = published["deliveries"]
    operator.run("deliveries", "cancel", delivery_id)
    monkeypatch.setenv("SUREHOOK_REPLAY_WINDOW", "0.000001")
    assert "replay_window" in operator.error("deliveries", "redeliver", delivery_id)
    tomorrow = id_time(published["id"]) + timedelta(days=1)
    with operator.engine.begin() as connection:
        connection.execute(update(tables.events).values(deliver_at=tomorrow))
    operator.run("deliveries", "redeliver", delivery_id)


def test_the_audit_log_names_the_tenant_of_a_key(operator: Operator) -> None:
    token = operator.json("keys", "portal", "acme")["id"]
    key = operator.json("keys", "create", "--scope", "tenant", "--tenant", "acme")["id"]
    operator.run("keys", "revoke", token)
    operator.run("keys", "revoke", key)
    with operator.engine.begin() as connection:
        log = tables.audit_log.c
        entries = connection.execute(select(log.action, log.target, log.tenant_id)).all()
    assert {tuple(entry) for entry in entries} == {
        ("portal_token.created", token, "acme"),
        ("key.revoked", token, "acme"),
        ("key.created", key, "acme"),
        ("key.revoked", key, "acme"),
    }
