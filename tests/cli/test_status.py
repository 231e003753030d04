"""`surehook status`: what it says when all is well, and when it is not."""

from __future__ import annotations

import json
import os
import signal
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import make_url, text

from delivery_service.store import activity, workers
from sender import tables as t
from sender.types import later
from tests.cli.conftest import Operator, on_postgresql
from tests.support.ports import HOST
from tests.support.proxy import Proxy
from tests.support.receiver import Answer, Receiver
from tests.support.tables import statements
from tests.support.waiting import wait_until
from wire.ids import first_id


def alive(operator: Operator, age: float = 0.0) -> None:
    with operator.engine.begin() as connection:
        workers.seen(connection, f"wrk_{age}", "host-1", 42)
        connection.execute(
            t.workers.update().where(t.workers.c.id == f"wrk_{age}").values(seen_at=later(-age))
        )


def test_f38_status_says_that_no_worker_runs_and_how_long_things_wait(operator: Operator) -> None:
    operator.endpoint()
    operator.publish()
    with operator.engine.begin() as connection:
        connection.execute(t.queue.update().values(due_at=later(-1000)))
    found = operator.json("status")
    assert found["workers"] == []
    assert found["oldest_due_age"] >= 1000
    assert found["queue"]["due"] == 1
    assert any("no worker was ever seen" in problem for problem in found["problems"])
    assert any("has waited for 16 min" in problem for problem in found["problems"])
    shown = operator.run("status").stdout
    assert "no worker was ever seen" in shown
    assert "for 16 min" in shown


def test_f38_a_worker_that_vanished_is_told_from_one_that_runs(operator: Operator) -> None:
    alive(operator, age=3600)
    (problem,) = operator.json("status")["problems"]
    assert "no worker was seen for 1 h 0 min" in problem
    alive(operator)
    found = operator.json("status")
    assert found["problems"] == []
    assert sorted(worker["alive"] for worker in found["workers"]) == [False, True]
    assert "Deliveries flow." in operator.run("status").stdout


def test_h02_a_worker_that_lives_but_does_nothing_is_a_problem(operator: Operator) -> None:
    alive(operator)
    operator.endpoint()
    operator.publish()
    with operator.engine.begin() as connection:
        connection.execute(t.queue.update().values(due_at=later(-2 * 3600)))
    (problem,) = operator.json("status")["problems"]
    assert problem == "the oldest due delivery has waited for 2 h 0 min"


def test_queue_is_told_apart_by_what_it_waits_for(operator: Operator) -> None:
    operator.endpoint()
    ids = [operator.publish()["deliveries"][0] for _ in range(4)]

    def change(delivery_id: str, **values: Any) -> None:
        with operator.engine.begin() as connection:
            where = t.queue.c.delivery_id == delivery_id
            connection.execute(t.queue.update().where(where).values(**values))

    change(ids[0], due_at=later(30), lease_token="held")
    change(ids[1], due_at=later(3600))
    change(ids[2], due_at=later(7200))
    queue = operator.json("status")["queue"]
    assert (queue["due"], queue["in_flight"], queue["scheduled"]) == (1, 1, 2)


def test_rates_and_worst_endpoints_after_real_work(operator: Operator, receiver: Receiver) -> None:
    good = operator.endpoint(receiver.url("/good"), "--type", "a.good")
    bad = operator.endpoint(receiver.url("/bad"), "--type", "a.bad")
    receiver.script("/bad", Answer(503))
    for _ in range(3):
        operator.publish("a.good")
        operator.publish("a.bad")
    operator.start("worker")

    def attempts() -> bool:
        with operator.engine.connect() as connection:
            return len(connection.execute(t.attempts.select()).all()) >= 6

    wait_until(attempts, deadline=60)
    found = operator.json("status", "--window", "10m")
    assert found["rates"]["attempts"] == pytest.approx(6 / 600, abs=0.001)
    assert found["rates"]["published"] == pytest.approx(6 / 600, abs=0.001)
    assert found["rates"]["delivered_share"] == 0.5
    (worst,) = found["worst_endpoints"]
    assert worst["id"] == bad["id"]
    assert (worst["failed"], worst["mostly"], worst["waiting"]) == (3, "status 503", 3)
    assert good["id"] not in json.dumps(found)
    assert any(worker["alive"] for worker in found["workers"])
    assert bad["id"] in operator.run("status").stdout


def test_open_circuits_come_first_and_urls_lose_their_query(operator: Operator) -> None:
    named = [operator.endpoint(f"http://127.0.0.1:9000/{n}?token=hunter2")["id"] for n in range(3)]
    with operator.engine.begin() as connection:
        for id_, circuit in zip(named, ("closed", "open", "closed"), strict=True):
            where = t.endpoints.c.id == id_
            values = {"circuit": circuit, "failures": 3, "failing_since": later(-60)}
            connection.execute(t.endpoints.update().where(where).values(**values))
    found = operator.json("status")
    assert found["worst_endpoints"][0]["id"] == named[1]
    assert len(found["worst_endpoints"]) == 3
    assert found["circuits"] == {"closed": 2, "open": 1}
    assert any("circuit open" in problem for problem in found["problems"])
    assert "hunter2" not in json.dumps(found)
    assert "hunter2" not in operator.run("status").stdout


def test_watch_prints_json_lines_until_it_is_stopped(operator: Operator) -> None:
    process = operator.start("status", "--watch", "--every", "0.1", "--json")
    wait_until(lambda: process.output.count("\n") >= 3, deadline=60)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 0, process.output
    lines = [line for line in process.output.splitlines() if line.startswith("{")]
    assert len(lines) >= 3
    assert "no worker was ever seen" in json.loads(lines[0])["problems"][0]
    assert "Traceback" not in process.output


def test_watch_outlives_the_database(operator: Operator) -> None:
    process = operator.start("status", "--watch", "--every", "0.1", "--json")
    wait_until(lambda: process.output.count("\n") >= 1, deadline=60)
    with operator.engine.begin() as connection:
        connection.execute(text("ALTER TABLE surehook_workers RENAME TO hidden"))
    process.wait_for(r"database_url: ", deadline=60)
    with operator.engine.begin() as connection:
        connection.execute(text("ALTER TABLE hidden RENAME TO surehook_workers"))
    seen = process.output.count('"queue"')
    wait_until(lambda: process.output.count('"queue"') > seen, deadline=60)


def test_nonsense_is_refused(operator: Operator) -> None:
    for window in ("soon", "0s", "2d", "1h,2h", "999999999d", "\u0661m"):
        assert "window" in operator.error("status", "--window", window)


def test_f25_counts_are_bounded(operator: Operator) -> None:
    operator.endpoint()
    now = datetime.now(UTC)
    with operator.engine.begin() as connection:
        rows = [
            {
                "delivery_id": f"{first_id('dlv', now)[:-6]}{n:06d}",
                "endpoint_id": "ep_x",
                "due_at": now + timedelta(hours=1),
            }
            for n in range(50)
        ]
        connection.execute(t.queue.insert(), rows)
        with statements(operator.engine) as seen:
            ahead = activity.ahead(connection, 20)
            assert activity.waiting(connection, ["ep_x", "ep_y"], 20) == {"ep_x": 20, "ep_y": 0}
    assert (ahead.in_flight, ahead.scheduled, ahead.more) == (0, 20, True)
    assert all("LIMIT" in statement for statement in seen)


@on_postgresql
def test_watch_outlives_the_loss_of_the_database_server(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = make_url(os.environ["SUREHOOK_DATABASE_URL"])
    assert url.port is not None
    with Proxy(url.port) as proxy:
        through = url.set(host=HOST, port=proxy.port).render_as_string(hide_password=False)
        process = operator.start(
            "status", "--watch", "--every", "0.1", "--json", SUREHOOK_DATABASE_URL=through
        )
        wait_until(lambda: '"queue"' in process.output, deadline=60)
    process.wait_for(r"\"problems\": \[\"database_url: ", deadline=60)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 0, process.output
    assert "Traceback" not in process.output
