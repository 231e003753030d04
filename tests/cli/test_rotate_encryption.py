"""`surehook secrets rotate-encryption`: everything ends up under the first key, whatever
happens meanwhile."""

from __future__ import annotations

import signal

import pytest
from cryptography.fernet import Fernet
from sqlalchemy import LargeBinary, select

from delivery_service.sealing import Sealer
from delivery_service.store import endpoints, sealed
from sender import tables as t
from tests.cli.conftest import Operator, on_postgresql
from tests.support.receiver import Receiver
from tests.support.waiting import wait_until
from wire import generate_secret
from wire.signature import verify

PLAIN = {
    "surehook_operations.fingerprint",
    "surehook_events.body",
    "surehook_events.fingerprint",
    "surehook_operations.data",
    "surehook_attempts.response_body",
    "surehook_api_keys.digest",
}
"""Columns of bytes that hold nothing encrypted."""


def keys(monkeypatch: pytest.MonkeyPatch, *several: str) -> None:
    monkeypatch.setenv("SUREHOOK_ENCRYPTION_KEYS", ",".join(several))


def first_key(operator: Operator) -> str:
    return operator.settings.encryption_keys[0].get_secret_value()


def fill(operator: Operator, key: str, count: int) -> dict[str, str]:
    """Endpoints with a secret, headers and TLS material under a key; secrets by endpoint."""
    sealer, made = Sealer([key]), {}
    with operator.engine.begin() as connection:
        for number in range(count):
            secret = generate_secret()
            row = {
                "tenant_id": "acme",
                "url": "http://127.0.0.1:9000/",
                "headers": sealer.seal_json({"authorization": f"Bearer {number}"}),
                "tls": sealer.seal_json({"private_ca": f"pem {number}"}),
            }
            made[endpoints.create(connection, row, sealer.seal(secret))] = secret
    return made


def values(operator: Operator) -> list[bytes]:
    with operator.engine.connect() as connection:
        return [
            bytes(value)
            for column in sealed.columns()
            for value in connection.scalars(select(column).where(column.is_not(None)))
        ]


def test_every_column_of_bytes_is_known_to_be_sealed_or_plain() -> None:
    binary = {
        str(column)
        for table in t.metadata.sorted_tables
        for column in table.c
        if isinstance(column.type, LargeBinary)
    }
    rotated = {str(column) for column in sealed.columns()}
    # A new column of bytes must say which it is: `info={SEALED: True}` if it is encrypted.
    assert rotated | PLAIN == binary
    assert not rotated & PLAIN
    assert {"surehook_secrets.ciphertext", "surehook_endpoints.headers"} <= rotated


def test_everything_is_encrypted_under_the_first_key_and_stays_the_same(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = first_key(operator), Fernet.generate_key().decode()
    made = fill(operator, old, 250)
    keys(monkeypatch, new, old)
    checked = operator.json("secrets", "rotate-encryption", "--check", status=1)
    assert (checked["values"], checked["left"], checked["rotated"]) == (750, 750, 0)
    done = operator.json("secrets", "rotate-encryption")
    assert (done["values"], done["rotated"], done["left"]) == (750, 750, 0)
    assert done["older_keys_removable"] is True
    again = operator.run("secrets", "rotate-encryption").stdout
    assert "All 750 values are under the first key (0 encrypted now)." in again
    assert "older keys can be removed" in again
    keys(monkeypatch, new)
    sealer = Sealer([new])
    with operator.engine.connect() as connection:
        for number, (id_, secret) in enumerate(made.items()):
            (row,) = endpoints.rows(connection, [id_])
            assert sealer.open_json(row["headers"]) == {"authorization": f"Bearer {number}"}
            assert sealer.open_json(row["tls"]) == {"private_ca": f"pem {number}"}
            assert row["version"] == 1
            (stored,) = endpoints.active_secrets(connection, [id_])[id_]
            assert sealer.open(bytes(stored["ciphertext"])) == secret
    alone = operator.json("secrets", "rotate-encryption")
    assert (alone["keys"], alone["older_keys_removable"]) == (1, False)


def test_a_missing_key_is_told_with_each_value_and_the_rest_is_done(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = first_key(operator), Fernet.generate_key().decode()
    fill(operator, old, 2)
    (lost,) = fill(operator, Fernet.generate_key().decode(), 1)
    keys(monkeypatch, new, old)
    done = operator.json("secrets", "rotate-encryption", status=1)
    assert (done["rotated"], done["left"], done["older_keys_removable"]) == (6, 3, False)
    assert sum(lost in name for name in done["unreadable"]) == 2
    failed = operator.run("secrets", "rotate-encryption", status=2)
    assert "No key opens surehook_endpoints.headers" in failed.stderr
    assert "encryption_keys: 3 of 9 values" in failed.stderr


@on_postgresql
def test_rows_that_another_transaction_holds_are_left_and_told(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = first_key(operator), Fernet.generate_key().decode()
    held, *_ = fill(operator, old, 3)
    keys(monkeypatch, new, old)
    with operator.engine.begin() as connection:
        endpoints.lock_health(connection, [held])
        done = operator.json("secrets", "rotate-encryption", status=1)
        assert (done["rotated"], done["left"]) == (7, 2)
        assert done["older_keys_removable"] is False
    assert operator.json("secrets", "rotate-encryption")["rotated"] == 2


def test_killed_in_the_middle_it_is_taken_up_again(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = first_key(operator), Fernet.generate_key().decode()
    made = fill(operator, old, 3_000)
    keys(monkeypatch, new, old)
    current = Sealer([new])

    def done() -> int:
        return sum(current.is_current(value) for value in values(operator))

    process = operator.start("secrets", "rotate-encryption")
    wait_until(done, deadline=60)
    process.send_signal(signal.SIGKILL)
    process.kill()
    half = done()
    assert half % 200 == 0 or half == 3 * len(made)
    rest = operator.json("secrets", "rotate-encryption")
    assert rest["rotated"] == 3 * len(made) - half
    assert all(current.is_current(value) for value in values(operator))


def test_workers_deliver_and_secrets_are_rotated_beside_it(
    operator: Operator, monkeypatch: pytest.MonkeyPatch, receiver: Receiver
) -> None:
    old, new = first_key(operator), Fernet.generate_key().decode()
    endpoint = operator.endpoint(receiver.url("/hook"))
    fill(operator, old, 600)
    # As documented: first every process learns the new key, then it becomes the first.
    worker = operator.start("worker", SUREHOOK_ENCRYPTION_KEYS=f"{old},{new}")
    operator.publish()
    receiver.wait_for(1, "/hook", deadline=60)
    keys(monkeypatch, new, old)
    process = operator.start("secrets", "rotate-encryption", "--json")
    secret = operator.json("endpoint", "rotate", endpoint["id"], "--overlap", "0s")["secret"]
    operator.publish()
    assert process.wait() == 0, process.output
    received = receiver.wait_for(2, "/hook", deadline=60)[-1]
    verify(secret, received.headers, received.body)
    assert worker.terminate() == 0
    assert operator.json("secrets", "rotate-encryption")["left"] == 0
    keys(monkeypatch, new)
    assert operator.json("endpoint", "show", endpoint["id"])["secrets"][0]["kind"] == "whsec"
