"""The receiver dies: a process of its own, killed in the middle of its answers."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from tests.faults.field import Field
from tests.support.ports import free_port
from tests.support.processes import Process, Processes
from tests.support.waiting import wait_until


def start_receiver(processes: Processes, port: int, log: Path) -> Process:
    receiver = processes.python("tests.faults.receiver_program", str(port), str(log))
    receiver.wait_for("listening")
    return receiver


def test_receiver_is_killed_in_the_middle_of_its_answers(
    field: Field, processes: Processes, tmp_path: Path
) -> None:
    port, log = free_port(), tmp_path / "received"
    receiver = start_receiver(processes, port, log)
    field.endpoints_at(f"http://127.0.0.1:{port}/hook")
    field.worker()
    field.wait_for_workers(1)
    field.publish(30)
    for _ in range(2):
        before = len(received(log))
        wait_until(lambda: len(received(log)) > before or not field.pending())  # noqa: B023
        receiver.kill()
        receiver = start_receiver(processes, port, log)
    field.wait_for_end()
    arrived = Counter(received(log))
    lost = field.published - arrived.keys()
    duplicated = sum(arrived.values()) - len(arrived)
    print(
        f"receiver killed [{field.kind}]: sent {len(field.published)}, received {len(arrived)},"
        f" duplicated {duplicated}, lost {len(lost)}"
    )
    assert not lost
    assert field.statuses() == {("delivered", None): len(field.published)}
    # Whatever it had of a request before it died is told: it may have arrived.
    broken = [a for a in field.attempts() if a.kind != "delivered"]
    assert broken
    assert {a.kind for a in broken} <= {"protocol", "connect", "timeout"}
    assert all(a.may_have_arrived for a in broken if a.kind == "protocol")


def received(log: Path) -> list[str]:
    """Ids of the deliveries whose requests have arrived completely."""
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
