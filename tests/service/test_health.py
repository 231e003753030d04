"""Health, readiness and the published contract; and what happens without a database."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from delivery_service.api.contract import contract_of
from delivery_service.bootstrap import build
from delivery_service.clock import ManualClock
from delivery_service.settings import Settings
from delivery_service.store import endpoints, workers
from tests.conftest import Postgres
from tests.service.caller import Api, event, open_api, problem_in
from tests.support.ports import free_port
from wire.contract import Contract


async def _seen(api: Api) -> None:
    await api.database.write(workers.seen, "wrk_1", "host", 1, api.clock.now())


async def test_f38_without_a_worker_the_service_is_not_ready(api: Api) -> None:
    problem = await api.problem(503, "GET", "/readyz", key=None)
    assert problem["worker_seen_age"] is None
    assert "surehook worker" in problem["detail"]
    await _seen(api)
    assert await api.ok("GET", "/readyz", key=None) == {
        "status": "ready",
        "oldest_due_age": 0.0,
        "worker_seen_age": 0.0,
    }
    api.clock.advance(timedelta(seconds=61))
    problem = await api.problem(503, "GET", "/readyz", key=None)
    assert problem["worker_seen_age"] == 61.0
    assert (await api.ok("GET", "/healthz", key=None)) == {"status": "ok"}


async def test_h02_an_old_due_delivery_turns_it_red_though_workers_are_seen(api: Api) -> None:
    await api.endpoint()
    await api.publish()
    api.clock.advance(timedelta(minutes=5))
    await _seen(api)
    assert (await api.ok("GET", "/readyz", key=None))["oldest_due_age"] == 300.0
    api.clock.advance(timedelta(seconds=1))
    await _seen(api)
    problem = await api.problem(503, "GET", "/readyz", key=None)
    assert problem["oldest_due_age"] == 301.0
    assert len(problem["reasons"]) == 1


async def test_a_paused_endpoint_does_not_turn_it_red(api: Api) -> None:
    endpoint = await api.endpoint()
    await api.publish()
    start = api.clock.moment
    paused = {"paused_until": start + timedelta(hours=1)}
    await api.database.write(endpoints.set_health, endpoint["id"], paused)
    api.clock.advance(timedelta(minutes=59))
    await _seen(api)
    assert (await api.ok("GET", "/readyz", key=None))["oldest_due_age"] == 0.0
    api.clock.advance(timedelta(minutes=7))
    await _seen(api)
    problem = await api.problem(503, "GET", "/readyz", key=None)
    assert problem["oldest_due_age"] == 360.0


async def test_a_large_backlog_of_a_paused_endpoint_hides_no_other(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delivery_service.store.lag.PEEK", 5)
    paused = await api.endpoint()
    for _ in range(6):
        await api.publish()
    until = {"paused_until": api.clock.moment + timedelta(hours=5)}
    await api.database.write(endpoints.set_health, paused["id"], until)
    api.clock.advance(timedelta(minutes=10))
    await _seen(api)
    assert (await api.ok("GET", "/readyz", key=None))["oldest_due_age"] == 0.0
    await api.endpoint("globex")
    await api.publish("globex")
    api.clock.advance(timedelta(minutes=6))
    await _seen(api)
    problem = await api.problem(503, "GET", "/readyz", key=None)
    assert problem["oldest_due_age"] == 360.0


async def test_the_contract_is_what_receivers_parse(api: Api) -> None:
    answer = await api.call("GET", "/.well-known/webhooks", key=None)
    assert Contract.from_json(answer.content) == contract_of(api.service.settings)
    shown = answer.json()
    assert shown["schedule_seconds"] == [60, 300, 1800, 7200, 21600]
    assert shown["min_dedup_ttl_seconds"] >= 3 * 86400 + 30960


def test_the_contract_is_finite_when_failing_never_disables() -> None:
    settings = Settings(database_url="sqlite:///x", disable_after=timedelta())
    assert contract_of(settings).postponement > timedelta(days=5)


async def test_without_its_database_the_answer_is_503_and_says_nothing_of_it(
    postgresql_api: Api, postgres: Postgres
) -> None:
    settings = postgresql_api.service.settings.model_copy(
        update={"database_url": f"postgresql://user:hunter2@127.0.0.1:{free_port()}/gone"}
    )
    service = build(settings, postgresql_api.clock)
    async with open_api(service, postgresql_api.clock, postgresql_api.keys) as api:
        for method, path in (("GET", "/v1/events"), ("GET", "/readyz"), ("POST", "/v1/events")):
            answer = await api.call(method, path, **(event() if method == "POST" else {}))
            assert answer.status_code == 503
            document = problem_in(answer)
            assert document["type"].endswith(":database-unavailable")
            assert answer.headers["retry-after"] == "1"
            assert "hunter2" not in answer.text
            assert "127.0.0.1" not in answer.text
        assert (await api.ok("GET", "/healthz", key=None)) == {"status": "ok"}
    await service.close()


async def test_it_recovers_when_connections_were_cut(
    postgresql_api: Api, postgres: Postgres
) -> None:
    api = postgresql_api
    await api.publish()
    name = api.database.engine.url.database
    assert name is not None
    assert postgres.end_connections(name) >= 1
    assert len((await api.ok("GET", "/v1/events"))["items"]) == 1


async def test_a_fault_of_our_own_is_a_500_without_internals(
    sqlite_api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_args: object, **_more: object) -> None:
        raise RuntimeError("secret internals")

    monkeypatch.setattr("delivery_service.store.events.page", broken)
    answer = await sqlite_api.call("GET", "/v1/events")
    assert answer.status_code == 500
    document = problem_in(answer)
    assert "secret internals" not in json.dumps(document)
    request_id = answer.headers["x-request-id"]
    assert request_id in caplog.text
    assert "secret internals" in caplog.text
    monkeypatch.undo()
    await sqlite_api.ok("GET", "/v1/events")


async def test_a_database_without_tables_is_503(tmp_path, sqlite_api: Api) -> None:
    settings = sqlite_api.service.settings.model_copy(
        update={"database_url": f"sqlite:///{tmp_path / 'empty.sqlite3'}"}
    )
    service = build(settings, ManualClock(sqlite_api.clock.moment))
    async with open_api(service, sqlite_api.clock, sqlite_api.keys) as api:
        await api.problem(503, "GET", "/v1/events")
    await service.close()
