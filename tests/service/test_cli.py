"""The commands of an operator, on both databases, in this process."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from sqlalchemy import Connection, select
from typer.testing import CliRunner, Result

from delivery_service.cli import app
from delivery_service.settings import Settings
from delivery_service.store import attempts, endpoints
from delivery_service.store.database import open_database
from sender.tables import api_keys, events, queue
from sender.types import later
from wire import generate_secret
from wire.version import VERSION

ROOT = Path(__file__).resolve().parents[2]

Run = Callable[..., Result]


@pytest.fixture
def settings(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.chdir(tmp_path)
    url = database_url.replace("+asyncpg", "").replace("+aiosqlite", "")
    monkeypatch.setenv("SUREHOOK_DATABASE_URL", url)
    monkeypatch.setenv("SUREHOOK_ENCRYPTION_KEYS", Fernet.generate_key().decode())
    monkeypatch.setenv("SUREHOOK_ALLOW_PRIVATE_NETWORKS", "true")
    return Settings()


@pytest.fixture
def run(settings: Settings) -> Run:
    """Runs a command that must succeed, unless ``status`` says otherwise."""

    def run(*arguments: str, status: int = 0, typed: str | None = None) -> Result:
        result = CliRunner().invoke(app, arguments, input=typed)
        assert result.exit_code == status, (arguments, result.output, result.exception)
        return result

    return run


@pytest.fixture
def migrated(run: Run) -> Run:
    run("migrate")
    return run


def error_line(result: Result) -> str:
    """The one line that a failed command prints, and nothing else."""
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stderr.startswith("surehook: ")
    return result.stderr


def database(settings: Settings, work: Callable[..., Any], *arguments: Any) -> Any:
    async def in_transaction() -> Any:
        opened = open_database(settings)
        try:
            return await opened.write(work, *arguments)
        finally:
            await opened.close()

    return asyncio.run(in_transaction())


def add_endpoint(run: Run, *more: str) -> dict[str, Any]:
    added = run(
        "endpoint",
        "add",
        "--tenant",
        "acme",
        "--url",
        "http://127.0.0.1:9000/hook",
        "--json",
        *more,
    )
    return dict(json.loads(added.stdout))


def publish(run: Run, *more: str) -> dict[str, Any]:
    command = ("publish", "--tenant", "acme", "--type", "invoice.paid", "--json")
    return dict(json.loads(run(*command, *(more or ("--data", "{}"))).stdout))


def test_version() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"surehook {VERSION}\n"


def test_migrate_up_check_and_down(run: Run) -> None:
    assert "no tables" in error_line(run("migrate", "--check", status=2))
    at_head = "The database is at revision 0006 (head).\n"
    assert run("migrate").stdout == at_head
    assert run("migrate", "--check").stdout == at_head
    run("migrate", "--downgrade", "base", status=1, typed="n\n")
    run("migrate", "--check")
    assert "revision base." in run("migrate", "--downgrade", "base", "--yes").stdout
    assert "nonsense" in error_line(run("migrate", "--revision", "nonsense", status=2))


def test_migrate_prints_sql_and_touches_nothing(run: Run) -> None:
    assert "CREATE TABLE surehook_queue" in run("migrate", "--sql").stdout
    assert "no tables" in error_line(run("migrate", "--check", status=2))


@pytest.mark.parametrize(
    "command",
    [
        ["keys", "list"],
        ["endpoint", "list"],
        ["deliveries", "list"],
        ["publish", "--tenant", "acme", "--type", "a.b", "--data", "1"],
        ["worker"],
        ["api"],
    ],
)
def test_an_unmigrated_database_is_named(run: Run, command: list[str]) -> None:
    run("migrate")
    run("migrate", "--downgrade", "base", "--yes")
    assert "run `surehook migrate`" in error_line(run(*command, status=2))


def test_keys_are_shown_once_and_stored_as_digests(migrated: Run, settings: Settings) -> None:
    made = json.loads(migrated("keys", "create", "--name", "ci", "--json").stdout)
    assert made["key"].startswith("shk_")
    listed = migrated("keys", "list", "--json").stdout
    assert [row["id"] for row in json.loads(listed)] == [made["id"]]
    assert made["key"] not in listed

    def rows(connection: Connection) -> str:
        return repr(connection.execute(select(api_keys)).all())

    assert made["key"] not in database(settings, rows)
    migrated("keys", "revoke", made["id"])
    assert json.loads(migrated("keys", "list", "--json").stdout)[0]["revoked_at"]
    assert "in force" in error_line(migrated("keys", "revoke", made["id"], status=2))


def test_keys_of_a_tenant_expire(migrated: Run) -> None:
    arguments = ("keys", "create", "--scope", "tenant", "--tenant", "acme", "--days", "7")
    assert "shk_" in migrated(*arguments).stdout
    (row,) = json.loads(migrated("keys", "list", "--json").stdout)
    assert (row["scope"], row["tenant_id"]) == ("tenant", "acme")
    assert row["expires_at"] > row["created_at"]
    assert "tenant" in error_line(migrated("keys", "create", "--scope", "tenant", status=2))


def test_keys_encryption_prints_a_usable_key() -> None:
    Fernet(CliRunner().invoke(app, ["keys", "encryption"]).stdout.strip())


def test_endpoint_add_and_list(migrated: Run) -> None:
    added = add_endpoint(migrated, "--type", "invoice.*", "--schedule", "fast")
    assert added["secret"].startswith("whsec_")
    listed = migrated("endpoint", "list", "--tenant", "acme", "--json").stdout
    (row,) = json.loads(listed)
    assert row["id"] == added["id"]
    assert row["event_types"] == ["invoice.*"]
    assert added["secret"] not in listed
    assert added["id"] in migrated("endpoint", "list").stdout
    assert migrated("endpoint", "list", "--tenant", "other").stdout.startswith("There are no")


def test_endpoint_add_with_a_given_secret(migrated: Run) -> None:
    secret = generate_secret("whsk")
    assert add_endpoint(migrated, "--secret", secret)["secret"] == secret


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("--url", "ftp://example.com/", "https"),
        ("--url", "http://169.254.169.254/", "169.254.169.254"),
        ("--type", "in voice", "event_types"),
        ("--secret", "whsec_short", "secret"),
        ("--secret", "whpk_1ZCSlpEH/DrXmZpcdYcU+x8f0ab1vmVg6JQNDdG1MXo=", "secret"),
        ("--schedule", "soon", "soon"),
        ("--profile", "mine", "profile"),
        ("--tenant", "", "tenant"),
    ],
)
def test_endpoint_add_names_what_is_wrong(
    migrated: Run, option: str, value: str, named: str
) -> None:
    given = {"--tenant": "acme", "--url": "http://127.0.0.1:9000/", option: value}
    arguments = [part for pair in given.items() for part in pair]
    assert named in error_line(migrated("endpoint", "add", *arguments, status=2))
    assert json.loads(migrated("endpoint", "list", "--json").stdout) == []


def test_endpoint_add_refuses_what_no_attempt_could_sign(migrated: Run) -> None:
    command = ("endpoint", "add", "--tenant", "acme", "--url", "http://127.0.0.1:9000/")
    options = ("--profile", "idempotency-key", "--secret", generate_secret("whsk"))
    assert "whsec_" in error_line(migrated(*command, *options, status=2))


def test_publish_keeps_the_json_as_given(migrated: Run, settings: Settings, tmp_path: Path) -> None:
    endpoint = add_endpoint(migrated)
    text = '{"a": 1.10, "b": 1E2, "big": 12345678901234567890123, "é": "😀"}'
    (tmp_path / "data.json").write_text(text)
    for arguments, piped in (
        (("--data", text), None),
        (("--data", "@data.json"), None),
        (("--data", "-"), text),
    ):
        command = ("publish", "--tenant", "acme", "--type", "invoice.paid", "--json")
        published = json.loads(migrated(*command, *arguments, typed=piped).stdout)
        assert len(published["deliveries"]) == 1

        def body(connection: Connection, event_id: str = published["id"]) -> bytes:
            query = select(events.c.body).where(events.c.id == event_id)
            return bytes(connection.scalar(query) or b"")

        assert text.encode() in database(settings, body)
    assert endpoint["id"] in migrated("deliveries", "list").stdout


def test_publish_of_bytes_and_idempotency(migrated: Run, tmp_path: Path) -> None:
    add_endpoint(migrated)
    (tmp_path / "body.xml").write_bytes(b"<paid/>")
    options = ("--body", "body.xml", "--content-type", "text/xml", "--idempotency-key", "k")
    first = publish(migrated, *options)
    again = publish(migrated, *options)
    assert again == {**first, "duplicate": True}
    command = ("publish", "--tenant", "acme", "--type", "invoice.paid", "--data", "2")
    other = migrated(*command, "--idempotency-key", "k", status=2)
    assert "idempotency_key" in error_line(other)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ([], "--data or --body"),
        (["--data", "1", "--body", "x"], "--data or --body"),
        (["--data", "{"], "JSON"),
        (["--data", "NaN"], "NaN"),
        (["--data", "@missing.json"], "missing.json"),
        (["--data", f'"{"x" * 300_000}"'], "262144"),
    ],
)
def test_publish_names_what_is_wrong(migrated: Run, options: list[str], named: str) -> None:
    command = ("publish", "--tenant", "acme", "--type", "invoice.paid")
    assert named in error_line(migrated(*command, *options, status=2))


def test_deliveries_list_filters_and_pages(migrated: Run) -> None:
    endpoint = add_endpoint(migrated)
    ids = [publish(migrated)["deliveries"][0] for _ in range(3)]

    def listed(*options: str) -> list[str]:
        found = migrated("deliveries", "list", "--json", *options).stdout
        return [row["id"] for row in json.loads(found)]

    assert listed() == ids[::-1]
    assert listed("--limit", "2") == ids[:0:-1]
    assert listed("--limit", "2", "--before", ids[1]) == [ids[0]]
    assert listed("--status", "pending", "--tenant", "acme", "--since", "1h") == ids[::-1]
    assert listed("--status", "dead") == []
    assert listed("--type", "invoice.void") == []
    assert listed("--endpoint", endpoint["id"], "--type", "invoice.paid") == ids[::-1]
    for unusable in ("soon", "1m,2m", "default"):
        assert error_line(migrated("deliveries", "list", "--since", unusable, status=2))
    assert migrated("deliveries", "list", "--tenant", "nobody").stdout.startswith("There are no")


def attempt_row(delivery_id: str, endpoint_id: str, **more: Any) -> dict[str, Any]:
    return {
        "id": "att_01HZ0000000000000000000000",
        "delivery_id": delivery_id,
        "endpoint_id": endpoint_id,
        "number": 1,
        "late": False,
        "started_at": later(),
        "duration": 0.25,
        "url": "http://127.0.0.1:9000/hook",
        "kind": "status",
        "status_code": 500,
        "error": None,
        "may_have_arrived": True,
        "request_headers": '[["webhook-id","x"]]',
        "response_headers": "[]",
        "response_body": b"\x1b]0;owned\x07",
        "response_truncated": False,
        **more,
    }


def test_deliveries_show_has_the_attempts_and_no_control_characters(
    migrated: Run, settings: Settings
) -> None:
    endpoint = add_endpoint(migrated)
    delivery_id = publish(migrated)["deliveries"][0]
    assert "No attempt" in migrated("deliveries", "show", delivery_id).stdout
    row = attempt_row(delivery_id, endpoint["id"], error="\x1b[31mred [bold]x[/bold]")

    def insert(connection: Connection) -> None:
        connection.execute(attempts.attempts.insert().values(**row))

    database(settings, insert)
    shown = migrated("deliveries", "show", delivery_id).stdout
    assert "500" in shown
    assert "0.250" in shown
    assert "\\x1b[31mred [bold]x[/bold]" in shown
    assert "\x1b" not in shown
    raw = migrated("deliveries", "show", delivery_id, "--json").stdout
    assert "\x1b" not in raw
    parsed = json.loads(raw)
    assert parsed["id"] == delivery_id
    assert parsed["log"][0]["request_headers"] == [["webhook-id", "x"]]


def test_redeliver(migrated: Run, settings: Settings) -> None:
    endpoint = add_endpoint(migrated)
    delivery_id = publish(migrated)["deliveries"][0]

    def postpone(connection: Connection) -> None:
        connection.execute(queue.update().values(due_at=later(3600)))

    def is_due(connection: Connection) -> bool:
        return bool(connection.scalar(select(queue.c.due_at <= later())))

    def lease(connection: Connection) -> None:
        connection.execute(queue.update().values(lease_token="t"))

    database(settings, postpone)
    assert not database(settings, is_due)
    migrated("deliveries", "redeliver", delivery_id)
    assert database(settings, is_due)
    database(settings, lease)
    assert "being sent just now" in error_line(
        migrated("deliveries", "redeliver", delivery_id, status=2)
    )
    database(settings, endpoints.disable, endpoint["id"], "operator")
    failed = migrated("deliveries", "redeliver", delivery_id, status=2)
    assert "endpoint is disabled" in error_line(failed)
    database(settings, endpoints.enable, endpoint["id"])
    migrated("deliveries", "redeliver", delivery_id)
    assert database(settings, is_due)
    unknown = "dlv_01HZ0000000000000000000000"
    assert unknown in error_line(migrated("deliveries", "redeliver", unknown, status=2))


def test_redeliver_is_all_or_nothing_and_keeps_to_the_replay_window(
    migrated: Run, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_endpoint(migrated)
    cancelled, pending = (publish(migrated)["deliveries"][0] for _ in range(2))
    migrated("deliveries", "cancel", cancelled)
    monkeypatch.setenv("SUREHOOK_REPLAY_WINDOW", "0.000001")

    def postpone(connection: Connection) -> None:
        connection.execute(queue.update().values(due_at=later(3600)))

    def is_due(connection: Connection) -> bool:
        return bool(connection.scalar(select(queue.c.due_at <= later())))

    database(settings, postpone)
    failed = migrated("deliveries", "redeliver", pending, cancelled, status=2)
    assert "replay_window" in error_line(failed)
    assert not database(settings, is_due)
    # What waits for an attempt anyway is no replay.
    migrated("deliveries", "redeliver", pending)
    assert database(settings, is_due)


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        ("PORT", "abc", "port"),
        ("LEASE", "1", "lease"),
        ("LEASE", "1 minute", "lease"),
        ("DATABASE_SCHEMA", "hooks", "database_schema"),
        ("DATABASE_URL", "mysql://x", "mysql"),
        ("DATABASE_URL", "postgresql://127.0.0.1:1/x", "database_url"),
        ("DATABASE_URL", "sqlite:////nowhere/at/all", "/nowhere/at/all"),
        ("CONFIG", "broken.toml", "broken.toml"),
        ("CONFIG", "unknown.toml", "databse_url"),
    ],
)
def test_settings_that_are_wrong_are_named(
    variable: str, value: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.toml").write_text("= nonsense")
    (tmp_path / "unknown.toml").write_text('databse_url = "sqlite:///x"')
    monkeypatch.setenv(f"SUREHOOK_{variable}", value)
    result = CliRunner().invoke(app, ["deliveries", "list"])
    assert named in error_line(result)


def test_a_wrong_secret_setting_is_not_printed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("migrate")
    monkeypatch.setenv("SUREHOOK_ENCRYPTION_KEYS", "hunter2")
    command = ("endpoint", "add", "--tenant", "acme", "--url", "http://127.0.0.1:9000/")
    line = error_line(run(*command, status=2))
    assert "encryption_keys" in line
    assert "hunter2" not in line


def test_a_wrong_database_or_password_is_one_line(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    url = re.sub(r"/[^/]*$", "/no_such_database", postgresql_url.replace("+asyncpg", ""))
    monkeypatch.setenv("SUREHOOK_DATABASE_URL", url)
    line = error_line(CliRunner().invoke(app, ["keys", "list"]))
    assert "no_such_database" in line


def test_output_that_nobody_reads_any_more_ends_quietly(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "delivery_service.cli", "keys", "encryption"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    os.close(writer)
    assert done.returncode == 1
    assert done.stderr == ""


def test_no_file_is_created_where_there_is_no_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "surehook.sqlite3" in error_line(CliRunner().invoke(app, ["deliveries", "list"]))
    assert list(tmp_path.iterdir()) == []
