"""`surehook recover`, `replay` and `operations`, on both databases."""

from __future__ import annotations

import json
from typing import Any

import pytest

from delivery_service.settings import Settings
from delivery_service.store import endpoints, operations
from tests.service.test_cli import (
    Run,
    add_endpoint,
    database,
    error_line,
    migrated,
    publish,
    run,
    settings,
)

__all__ = ["migrated", "run", "settings"]


def listed(run: Run, status: str) -> set[str]:
    found = json.loads(run("deliveries", "list", "--status", status, "--json").stdout)
    return {row["id"] for row in found}


@pytest.fixture
def skipped(migrated: Run, settings: Settings) -> list[str]:
    """Three deliveries whose endpoint was disabled for a while."""
    endpoint = add_endpoint(migrated)
    ids = [publish(migrated)["deliveries"][0] for _ in range(3)]
    database(settings, endpoints.disable, endpoint["id"], "operator")
    database(settings, endpoints.enable, endpoint["id"])
    assert listed(migrated, "skipped") == set(ids)
    return ids


def test_recover_counts_first_and_then_does_it(migrated: Run, skipped: list[str]) -> None:
    counted = migrated("recover", "--since", "2h", "--dry-run", "--json").stdout
    assert json.loads(counted) == {
        "kind": "recover", "matched": 3, "possible": 3, "passed_over": {},
    }  # fmt: skip
    assert "matched:" in migrated("recover", "--since", "2h", "--dry-run").stdout
    assert listed(migrated, "skipped") == set(skipped)
    done = json.loads(migrated("recover", "--since", "2h", "--json").stdout)
    assert (done["status"], done["done"], done["progress"]) == ("done", 3, 1.0)
    assert listed(migrated, "pending") == set(skipped)
    shown = migrated("operations", "show", done["id"]).stdout
    assert "done" in shown
    assert "lease" not in shown
    found = json.loads(migrated("operations", "list", "--json").stdout)
    assert [row["id"] for row in found] == [done["id"]]
    assert done["id"] in migrated("operations", "list").stdout


def test_filters_and_replay(migrated: Run, skipped: list[str]) -> None:
    def matched(*options: str) -> int:
        text = migrated("replay", "--since", "2h", "--dry-run", "--json", *options).stdout
        return int(json.loads(text)["matched"])

    assert matched() == 3
    assert matched("--tenant", "nobody") == 0
    assert matched("--type", "invoice.void") == 0
    assert matched("--status", "dead") == 0
    assert matched("--until", "1h") == 0
    assert matched("--endpoint", "ep_01HZ0000000000000000000000") == 0
    done = json.loads(migrated("replay", "--since", "2026-01-01T00:00:00Z", "--json").stdout)
    assert done["done"] == 3
    assert listed(migrated, "pending") == set(skipped)


def test_without_waiting_it_is_queued_and_can_be_cancelled(
    migrated: Run, settings: Settings, skipped: list[str]
) -> None:
    queued: dict[str, Any] = json.loads(
        migrated("recover", "--since", "2h", "--no-wait", "--json").stdout
    )
    assert (queued["status"], queued["progress"]) == ("queued", 0.0)
    assert "cancelled" in migrated("operations", "cancel", queued["id"]).stdout
    assert "cancelled" in error_line(migrated("operations", "cancel", queued["id"], status=2))
    row = database(settings, operations.get, queued["id"])
    assert row["status"] == "cancelled"
    assert listed(migrated, "skipped") == set(skipped)
    waited = json.loads(migrated("operations", "show", "--wait", queued["id"], "--json").stdout)
    assert waited["status"] == "cancelled"


def test_a_key_starts_one_operation(migrated: Run, skipped: list[str]) -> None:
    command = ("recover", "--since", "2026-01-01T00:00:00Z", "--idempotency-key", "k", "--json")
    first = json.loads(migrated(*command).stdout)
    assert (first["done"], first["idempotency_key"]) == (3, "k")
    assert json.loads(migrated(*command).stdout) == first
    assert first["id"] in error_line(migrated(*command, "--tenant", "acme", status=2))
    found = json.loads(migrated("operations", "list", "--json").stdout)
    assert [row["id"] for row in found] == [first["id"]]
    assert "idempotency_key" in error_line(migrated(*command[:-2], "", status=2))


def test_a_key_cancels_once(migrated: Run) -> None:
    add_endpoint(migrated)
    first_id = publish(migrated)["deliveries"][0]
    command = ("cancel", "--since", "2026-01-01T00:00:00Z", "--idempotency-key", "k", "--json")
    first = json.loads(migrated(*command).stdout)
    assert (first["done"], first["idempotency_key"]) == (1, "k")
    # What has become pending since then is not what the key was given for.
    later_id = publish(migrated)["deliveries"][0]
    assert json.loads(migrated(*command).stdout) == first
    assert (listed(migrated, "cancelled"), listed(migrated, "pending")) == ({first_id}, {later_id})
    assert first["id"] in error_line(migrated(*command, "--type", "invoice.paid", status=2))
    recover = ("recover", *command[1:])
    assert first["id"] in error_line(migrated(*recover, status=2))
    found = json.loads(migrated("operations", "list", "--json").stdout)
    assert [row["id"] for row in found] == [first["id"]]


def test_a_key_broadcasts_once(migrated: Run) -> None:
    add_endpoint(migrated)
    what = ("broadcast", "--type", "terms.changed", "--idempotency-key", "k", "--json")
    first = json.loads(migrated(*what, "--data", '{"version": 2}').stdout)
    assert (first["done"], first["idempotency_key"]) == (1, "k")
    assert json.loads(migrated(*what, "--data", '{"version": 2}').stdout) == first
    assert len(listed(migrated, "pending")) == 1
    assert first["id"] in error_line(migrated(*what, "--data", '{"version": 3}', status=2))
    other = (*what, "--type", "terms.noted", "--data", '{"version": 2}')
    assert first["id"] in error_line(migrated(*other, status=2))
    assert len(listed(migrated, "pending")) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("recover", "--since", "soon"),
        ("recover", "--since", "1m,2m"),
        ("recover", "--since", "1h", "--until", "2h"),
        ("recover", "--since", "1h", "--endpoint", "dlv_01HZ0000000000000000000000"),
        ("replay", "--since", "1h", "--type", "invoice paid"),
        ("cancel", "--since", "1h", "--tenant", ""),
        ("operations", "show", "op_01HZ0000000000000000000000"),
        ("operations", "cancel", "op_01HZ0000000000000000000000"),
    ],
)
def test_what_is_wrong_is_one_line(migrated: Run, arguments: tuple[str, ...]) -> None:
    assert error_line(migrated(*arguments, status=2))
    assert migrated("operations", "list").stdout == "There are no operations.\n"
