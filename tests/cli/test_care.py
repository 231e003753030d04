"""One endpoint and one delivery that need looking after."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import select

from delivery_service.store import endpoints
from sender import tables as t
from sender.types import later
from tests.cli.conftest import Operator
from tests.support.receiver import Answer, Receiver
from wire import generate_secret
from wire.signature import verify

UNKNOWN = "ep_01HZ0000000000000000000000"


def audited(operator: Operator) -> list[tuple[str, str]]:
    with operator.engine.connect() as connection:
        rows = connection.execute(select(t.audit_log).order_by(t.audit_log.c.id)).all()
    assert all(row.actor == "cli" or row.actor.startswith("cli:") for row in rows)
    return [(row.action, row.target) for row in rows]


def test_disable_and_enable_and_what_the_audit_log_says(operator: Operator) -> None:
    id_ = operator.endpoint()["id"]
    delivery_id = operator.publish()["deliveries"][0]
    assert "is disabled." in operator.run("endpoint", "disable", id_).stdout
    assert "already" in operator.run("endpoint", "disable", id_).stdout
    (row,) = operator.json("deliveries", "list")
    assert (row["status"], row["reason"]) == ("skipped", "endpoint_disabled")
    assert operator.json("endpoint", "show", id_)["disabled_reason"] == "operator"
    with operator.engine.begin() as connection:
        connection.execute(
            t.endpoints.update().values(circuit="open", failures=9, paused_until=later(600))
        )
    operator.run("endpoint", "enable", id_)
    shown = operator.json("endpoint", "show", id_)
    assert (shown["status"], shown["circuit"], shown["failures"]) == ("enabled", "closed", 0)
    operator.run("deliveries", "redeliver", delivery_id)
    assert operator.json("endpoint", "show", id_)["waiting"] == 1
    assert audited(operator) == [
        ("endpoint.created", id_),
        ("endpoint.disabled", id_),
        ("endpoint.enabled", id_),
        ("delivery.redelivered", delivery_id),
    ]


@pytest.mark.parametrize("command", ["show", "enable", "verify", "disable", "rotate", "test"])
def test_an_unknown_endpoint_is_named(operator: Operator, command: str) -> None:
    assert UNKNOWN in operator.error("endpoint", command, UNKNOWN)


def test_show_hides_secrets(operator: Operator) -> None:
    added = operator.endpoint()
    sealed = operator.settings
    shown = operator.run("endpoint", "show", added["id"]).stdout
    assert added["secret"] not in shown + json.dumps(operator.json("endpoint", "show", added["id"]))
    assert added["url"] in shown
    assert "ciphertext" not in json.dumps(operator.json("endpoint", "list"))
    assert sealed.encryption_keys[0].get_secret_value() not in shown


def test_rotate_overlaps_and_ends(operator: Operator) -> None:
    id_ = operator.endpoint()["id"]
    first = operator.json("endpoint", "rotate", id_)
    assert first["secret"].startswith("whsec_")
    assert first["overlap_seconds"] == 86_400
    secrets = operator.json("endpoint", "show", id_)["secrets"]
    assert [secret["expires_at"] is None for secret in secrets] == [True, False]
    own = generate_secret("whsk")
    assert operator.json("endpoint", "rotate", id_, "--secret", own)["secret"] == own
    assert "signs already" in operator.error("endpoint", "rotate", id_, "--secret", own)
    for _ in range(2):
        operator.run("endpoint", "rotate", id_)
    assert "overlap of 0" in operator.error("endpoint", "rotate", id_)
    assert operator.json("endpoint", "rotate", id_, "--overlap", "0s")["overlap_seconds"] == 0
    assert len(operator.json("endpoint", "show", id_)["secrets"]) == 1
    assert "overlap" in operator.error("endpoint", "rotate", id_, "--overlap", "31d")
    assert "secret" in operator.error("endpoint", "rotate", id_, "--secret", "whsec_short")


def test_rotate_refuses_what_no_attempt_could_sign(operator: Operator) -> None:
    id_ = operator.endpoint("http://127.0.0.1:9000/", "--profile", "idempotency-key")["id"]
    assert "whsec_" in operator.error("endpoint", "rotate", id_, "--kind", "whsk")


def test_a_test_is_a_real_request_that_is_stored_nowhere(
    operator: Operator, receiver: Receiver
) -> None:
    added = operator.endpoint(receiver.url("/hook"))
    operator.run("endpoint", "disable", added["id"])
    trial = operator.json("endpoint", "test", added["id"], "--data", '{"n": 1.10}')
    assert (trial["delivered"], trial["status_code"]) == (True, 200)
    (received,) = receiver.received("/hook")
    verified = verify(added["secret"], received.headers, received.body)
    assert verified.id == trial["webhook_id"]
    assert received.header("x-webhook-event-type") == "surehook.test"
    assert received.body.endswith(b'"data":{"n": 1.10}}')
    with operator.engine.connect() as connection:
        for table in (t.events, t.deliveries, t.attempts, t.queue):
            assert connection.execute(select(table)).all() == []


def test_a_test_that_fails_says_how_and_harms_nothing(
    operator: Operator, receiver: Receiver
) -> None:
    id_ = operator.endpoint(receiver.url("/bad"))["id"]
    receiver.script("/bad", Answer(503, body=b"\x1b]0;owned\x07"))
    failed = operator.json("endpoint", "test", id_, status=1)
    assert (failed["kind"], failed["status_code"]) == ("status", 503)
    assert "\x1b" not in operator.run("endpoint", "test", id_, status=1).stdout
    with operator.engine.connect() as connection:
        (row,) = endpoints.rows(connection, [id_])
    assert (row["failures"], row["circuit"]) == (0, "closed")
    assert "data" in operator.error("endpoint", "test", id_, "--data", "{")


def test_e22_a_test_names_the_guard_and_the_setting(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_ = operator.endpoint("http://192.168.1.9/hook")["id"]
    monkeypatch.setenv("SUREHOOK_ALLOW_PRIVATE_NETWORKS", "false")
    failed = operator.json("endpoint", "test", id_, status=1)
    assert failed["kind"] == "blocked"
    assert "SSRF guard" in failed["error"]
    assert "allow_private_networks" in failed["error"]


def test_cancel_is_all_or_nothing(operator: Operator) -> None:
    operator.endpoint()
    first, second = (operator.publish()["deliveries"][0] for _ in range(2))
    operator.run("deliveries", "cancel", first)
    assert operator.json("deliveries", "show", first)["reason"] == "cancelled"
    assert "cancelled already" in operator.error("deliveries", "cancel", second, first)
    assert operator.json("deliveries", "show", second)["status"] == "pending"
    assert "there is no delivery" in operator.error("deliveries", "cancel", "dlv_x")
    assert ("delivery.cancelled", first) in audited(operator)
    operator.run("deliveries", "redeliver", first)
    assert operator.json("deliveries", "show", first)["status"] == "pending"


def test_deliveries_since_and_until(operator: Operator) -> None:
    operator.endpoint()
    ids = [operator.publish()["deliveries"][0] for _ in range(2)]
    at = operator.json("deliveries", "show", ids[1])["created_at"]

    def listed(*options: str) -> list[str]:
        return [row["id"] for row in operator.json("deliveries", "list", *options)]

    assert listed("--since", at) == [ids[1]]
    assert listed("--until", at) == [ids[0]]
    assert listed("--since", "1h", "--until", "0s") == ids[::-1]
    assert listed("--until", "1h") == []
    assert listed("--since", "20000d") == ids[::-1]
    for nonsense in ("2026-11-29", "yesterday", "-2h", "2026-13-01T00:00:00Z"):
        assert "until" in operator.error("deliveries", "list", f"--until={nonsense}")


def test_did_it_get_that_event_is_always_answered(operator: Operator) -> None:
    operator.endpoint("http://127.0.0.1:9000/", "--type", "invoice.paid")
    sent, unmatched = operator.publish()["id"], operator.publish("order.shipped")["id"]

    def said(*options: str) -> str:
        return operator.run("deliveries", "list", *options).stdout

    assert "pending" in said("--event", sent)
    assert "no endpoint for that event type" in said("--event", unmatched)
    assert "never committed" in said("--event", "evt_01HZ0000000000000000000000")
    assert "but others" in said("--event", sent, "--status", "dead")
