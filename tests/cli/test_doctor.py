"""`surehook doctor`: each fault is found and named, and a sound service has none."""

from __future__ import annotations

import datetime as dt
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import trustme
from sqlalchemy import text
from typer.testing import CliRunner

from delivery_service.cli import app
from delivery_service.cli.doctor import database as database_checks
from delivery_service.cli.doctor import flow, reaching
from delivery_service.cli.doctor.findings import Finding, Level
from delivery_service.net.guard import GuardPolicy
from delivery_service.net.tls import TlsSettings
from delivery_service.sealing import generate_encryption_key
from delivery_service.store import workers
from sender import tables as t
from sender.types import later
from tests.cli.conftest import Operator, on_postgresql
from tests.support.ports import HOST, free_port
from tests.support.receiver import Receiver

ALLOWED = GuardPolicy(allow_http=True, allow_private_networks=True)


def alive(operator: Operator) -> None:
    with operator.engine.begin() as connection:
        workers.seen(connection, "wrk_1", "host-1", 42)


def about(report: dict[str, Any], name: str) -> list[dict[str, str]]:
    return [each for each in report["findings"] if each["about"] == name]


def looked(operator: Operator, status: int = 0) -> dict[str, Any]:
    """What the doctor says beside what is true of the tests' server: it runs without fsync."""
    result = CliRunner().invoke(app, ["doctor", "--json"])
    report = json.loads(result.stdout)
    assert result.exit_code == int(report["failures"] > 0)
    if not operator.settings.is_sqlite:
        (fsync,) = about(report, "fsync")
        assert fsync["level"] == "failure"
        report["failures"] -= 1
    assert int(report["failures"] > 0) == status, report
    return dict(report)


def levels(report: dict[str, Any]) -> dict[str, str]:
    return {each["about"]: each["level"] for each in report["findings"]}


def test_a_sound_service_has_no_failure(operator: Operator) -> None:
    alive(operator)
    report = looked(operator)
    assert report["failures"] == 0
    found = levels(report)
    for name in ("settings", "version", "clock", "revision", "workers", "oldest due", "DNS"):
        assert found[name] == "ok", report
    assert found["allow_private_networks"] == "warning"
    shown = operator.run("doctor", status=int("fsync" in found)).stdout
    assert "allow_private_networks: every tenant can reach" in shown


def test_f38_no_worker_is_a_failure(operator: Operator) -> None:
    report = looked(operator, 1)
    assert report["failures"] == 1
    (worker,) = about(report, "workers")
    assert worker["level"] == "failure"
    assert "surehook worker" in worker["text"]
    alive(operator)
    with operator.engine.begin() as connection:
        connection.execute(t.workers.update().values(seen_at=later(-7200)))
    (worker,) = about(looked(operator, 1), "workers")
    assert "for 2 h 0 min" in worker["text"]


def test_h02_old_due_deliveries_are_a_failure_though_workers_live(operator: Operator) -> None:
    alive(operator)
    operator.endpoint()
    operator.publish()
    assert looked(operator)["failures"] == 0
    with operator.engine.begin() as connection:
        connection.execute(t.queue.update().values(due_at=later(-3600)))
    report = looked(operator, 1)
    assert levels(report)["oldest due"] == "failure"
    assert levels(report)["workers"] == "ok"


def test_settings_that_can_not_be_used_are_a_finding(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUREHOOK_LEASE", "1")
    report = operator.json("doctor", status=1)
    assert "lease" in about(report, "settings")[0]["text"]


def test_encryption_keys_are_looked_at_and_not_shown(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive(operator)
    monkeypatch.setenv("SUREHOOK_ENCRYPTION_KEYS", "hunter2")
    report = looked(operator, 1)
    assert levels(report)["encryption_keys"] == "failure"
    assert "hunter2" not in json.dumps(report)
    two = f"{generate_encryption_key()},{generate_encryption_key()}"
    monkeypatch.setenv("SUREHOOK_ENCRYPTION_KEYS", two)
    (found,) = about(looked(operator), "encryption_keys")
    assert "rotate-encryption" in found["text"]


def test_e23_proxy_variables_are_said_to_have_no_effect(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive(operator)
    for name in (
        "HTTPS_PROXY",
        "HTTP_PROXY",
        "ALL_PROXY",
        "https_proxy",
        "http_proxy",
        "all_proxy",
    ):
        monkeypatch.delenv(name, raising=False)
    assert about(looked(operator), "proxy") == []
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    (found,) = about(looked(operator), "proxy")
    assert "no effect" in found["text"]


def test_a_missing_or_unmigrated_database_is_a_finding(bare: Callable[..., Any]) -> None:
    report = json.loads(bare("doctor", "--json", status=1).stdout)
    assert "there is no file" in about(report, "database")[0]["text"]
    bare("migrate")
    bare("migrate", "--downgrade", "base", "--yes")
    report = json.loads(bare("doctor", "--json", status=1).stdout)
    assert "surehook migrate" in about(report, "revision")[0]["text"]


def test_a_database_that_is_away_is_a_finding(
    bare: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUREHOOK_DATABASE_URL", f"postgresql://u:hunter2@{HOST}:{free_port()}/x")
    monkeypatch.setenv("SUREHOOK_ENCRYPTION_KEYS", generate_encryption_key())
    report = json.loads(bare("doctor", "--json", status=1).stdout)
    assert levels(report)["database"] == "failure"
    assert "hunter2" not in json.dumps(report)


def test_a_key_file_that_others_can_read_is_a_failure(bare: Callable[..., Any]) -> None:
    bare("migrate")
    bare("endpoint", "add", "--tenant", "acme", "--url", "https://hooks.example/")
    found = levels(json.loads(bare("doctor", "--json", status=1).stdout))
    assert found["encryption_keys"] == "ok"
    Path("surehook.sqlite3.key").chmod(0o644)
    report = json.loads(bare("doctor", "--json", status=1).stdout)
    assert "chmod 600" in about(report, "encryption_keys")[0]["text"]


@on_postgresql
def test_f27_idle_transactions_are_found_and_their_time_limit_asked_for(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive(operator)
    name = "idle_in_transaction_session_timeout"
    (found,) = about(looked(operator), name)
    assert found["level"] == "warning"
    assert "ALTER DATABASE" in found["text"]
    with operator.engine.begin() as connection:
        database = connection.scalar(text("SELECT current_database()"))
        connection.execute(text(f"ALTER DATABASE \"{database}\" SET {name} = '60s'"))
    assert about(looked(operator), name)[0] == {"about": name, "level": "ok", "text": "60s"}
    monkeypatch.setattr(database_checks, "LONG_TRANSACTION", 0)
    url = operator.settings.database_url
    with psycopg.connect(url, application_name="nightly-report") as forgotten:
        forgotten.execute("SELECT 1")
        (found,) = about(looked(operator), "long transaction")
    assert "nightly-report, idle in transaction" in found["text"]


@on_postgresql
def test_lost_durability_is_found(operator: Operator) -> None:
    alive(operator)
    with operator.engine.begin() as connection:
        database = connection.scalar(text("SELECT current_database()"))
        connection.execute(text(f'ALTER DATABASE "{database}" SET synchronous_commit = off'))
    assert levels(looked(operator))["synchronous_commit"] == "warning"


@pytest.mark.parametrize(("seconds", "level"), [(0, "ok"), (60, "warning"), (-3600, "failure")])
def test_a_wrong_clock_is_found(
    operator: Operator, monkeypatch: pytest.MonkeyPatch, seconds: int, level: str
) -> None:
    alive(operator)

    class Wrong(dt.datetime):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> dt.datetime:  # type: ignore[override]
            return dt.datetime.now(tz) + dt.timedelta(seconds=seconds)

    monkeypatch.setattr(database_checks, "datetime", Wrong)
    report = looked(operator, int(level == "failure"))
    assert levels(report)["clock"] == level


async def test_names_that_do_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"a.example": ["192.0.2.1"], "empty.example": []}

    class Lookup:
        async def __call__(self, host: str) -> list[str]:
            if host not in known:
                raise socket.gaierror(-2, "Name or service not known")
            return known[host]

    monkeypatch.setattr(flow, "ThreadedLookup", Lookup)
    assert [f.level for f in await flow.check_names(["a.example"])] == [Level.OK]
    (partly,) = await flow.check_names(["a.example", "b.example"])
    assert (partly.level, "b.example" in partly.text) == (Level.WARNING, True)
    (wholly,) = await flow.check_names(["b.example", "empty.example"])
    assert wholly.level is Level.FAILURE


def test_an_endpoint_that_works(operator: Operator, receiver: Receiver) -> None:
    for kind in ("whsec", "whsk"):
        id_ = operator.endpoint(receiver.url("/hook"))["id"]
        operator.run("endpoint", "rotate", id_, "--kind", kind)
        report = operator.json("doctor", "--endpoint", id_)
        assert report["failures"] == report["warnings"] == 0, report
        assert {"status", "signature", "guard", "TCP"} == levels(report).keys()
        assert "2 secrets in force" in about(report, "signature")[0]["text"]
    assert receiver.requests == []  # nothing was sent


def test_every_profile_of_an_endpoint_is_tested(operator: Operator, receiver: Receiver) -> None:
    profiles = ("--profile", "standard", "--profile", "idempotency-key")
    id_ = operator.endpoint(receiver.url("/hook"), *profiles)["id"]
    report = operator.json("doctor", "--endpoint", id_)
    assert [each["level"] for each in about(report, "signature")] == ["ok", "ok"]


def test_an_endpoint_that_is_disabled_down_or_unreadable(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_ = operator.endpoint(f"http://{HOST}:{free_port()}/")["id"]
    report = operator.json("doctor", "--endpoint", id_, status=1)
    assert "Connection refused" in about(report, "TCP")[0]["text"]
    with operator.engine.begin() as connection:
        connection.execute(
            t.endpoints.update().values(circuit="open", failures=9, paused_until=later(60))
        )
    report = operator.json("doctor", "--endpoint", id_, status=1)
    assert levels(report)["circuit"] == "warning"
    operator.run("endpoint", "disable", id_)
    report = operator.json("doctor", "--endpoint", id_, status=1)
    assert f"surehook endpoint enable {id_}" in about(report, "status")[0]["text"]
    monkeypatch.setenv("SUREHOOK_ENCRYPTION_KEYS", generate_encryption_key())
    report = operator.json("doctor", "--endpoint", id_, status=1)
    assert "encryption_keys" in about(report, "signature")[0]["text"]
    assert "there is no endpoint" in operator.error("doctor", "--endpoint", "ep_x")


@pytest.mark.parametrize(
    ("url", "rule", "setting"),
    [
        ("http://192.168.1.5/hook", "address", "allow_private_networks"),
        ("http://169.254.169.254/latest", "address", "allowed_networks"),
        ("http://localhost/hook", "host", "allow_private_networks"),
        ("ftp://hooks.example/", "scheme", "https"),
        ("http://u:p@hooks.example/", "url", "user information"),
        ("http://127.0.0.1:22/", "port", "allowed_ports"),
    ],
)
def test_e22_the_guard_s_verdict_names_rule_and_setting(
    bare: Callable[..., Any], url: str, rule: str, setting: str
) -> None:
    report = json.loads(bare("doctor", "--endpoint", url, "--json", status=1).stdout)
    (found,) = report["findings"]
    assert found["about"] == "guard"
    assert f"rule {rule}:" in found["text"]
    assert setting in found["text"]


async def reach(url: str, tls: TlsSettings | None = None) -> list[Finding]:
    return [finding async for finding in reaching.check_reach(url, ALLOWED, tls)]


async def test_a_name_with_one_refused_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def both(_host: str) -> list[str]:
        return ["127.0.0.1", "169.254.169.254"]

    monkeypatch.setattr(reaching, "addresses_of", both)
    found = await reach("http://hooks.example/")
    assert [(each.about, each.level) for each in found] == [
        ("guard", Level.OK),
        ("DNS", Level.OK),
        ("guard", Level.FAILURE),
    ]
    assert "169.254.169.254" in found[-1].text


@contextmanager
def tls_server(certificate: trustme.LeafCert) -> Iterator[int]:
    """Shakes hands with every caller; gives its port."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificate.configure_cert(context)
    with Receiver(tls=context) as receiver:
        yield receiver.port


@pytest.mark.parametrize(
    ("days", "level", "said"),
    [(90, Level.OK, "valid until"), (5, Level.WARNING, "renew"), (-1, Level.FAILURE, "expired")],
)
async def test_certificates_are_judged_by_their_end(
    days: int, level: Level, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def loopback(_host: str) -> list[str]:
        return [HOST]

    monkeypatch.setattr(reaching, "addresses_of", loopback)
    authority = trustme.CA()
    end = dt.datetime.now(dt.UTC) + dt.timedelta(days=days, hours=1)
    start = end - dt.timedelta(days=30 if days < 30 else 100)
    certificate = authority.issue_cert("hooks.example", not_before=start, not_after=end)
    tls = TlsSettings(private_ca=authority.cert_pem.bytes().decode())
    with tls_server(certificate) as port:
        found = await reach(f"https://hooks.example:{port}/", tls)
        (handshake,) = [each for each in found if each.about == "TLS"]
        assert handshake.level is level, handshake
        assert said in handshake.text
        other = await reach(f"https://other.example:{port}/", tls)
    (handshake,) = [each for each in other if each.about == "TLS"]
    assert handshake.level is Level.FAILURE


async def test_a_server_that_accepts_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaching, "CONNECT_TIMEOUT", 0.2)
    with socket.create_server((HOST, 0)) as silent:
        found = await reach(f"https://{HOST}:{silent.getsockname()[1]}/")
    assert found[-1].about == "TLS"
    assert "no handshake within 0.2 s" in found[-1].text


async def test_a_server_that_does_not_speak_tls() -> None:
    with socket.create_server((HOST, 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        found = await reach(f"https://{HOST}:{server.getsockname()[1]}/")
        thread.join()
    assert (found[-1].about, found[-1].level) == ("TLS", Level.FAILURE)
