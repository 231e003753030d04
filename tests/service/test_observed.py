"""What the API gives to monitoring: metrics, and the caller's trace."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from sender.tables import events
from tests.service.caller import Api, event

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def test_metrics_need_a_key_of_the_platform(sqlite_api: Api) -> None:
    for key, status in (("admin", 200), ("read", 200), ("publish", 403), ("tenant", 403)):
        answer = await sqlite_api.call("GET", "/metrics", key=key)
        assert answer.status_code == status
    await sqlite_api.problem(401, "GET", "/metrics", key=None)
    answer = await sqlite_api.call("GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert "surehook_worker_up 0.0" in answer.text


class TestPublic:
    """With the setting `metrics_public`."""

    @pytest.fixture
    def options(self) -> dict[str, object]:
        return {"metrics_public": True}

    async def test_no_key_is_needed(self, sqlite_api: Api) -> None:
        answer = await sqlite_api.call("GET", "/metrics", key=None)
        assert answer.status_code == 200
        assert "acme" not in answer.text


async def _trace_of_events(api: Api) -> list[str | None]:
    rows = await api.database.read(
        lambda connection: connection.execute(select(events.c.trace_context)).all()
    )
    return [row.trace_context for row in rows]


async def test_the_callers_trace_is_kept_with_the_event(api: Api) -> None:
    headers = {"traceparent": TRACE}
    request = event()
    await api.ok("POST", "/v1/events", **{**request, "headers": request["headers"] | headers})
    batch = {"events": [{"tenant": "acme", "type": "a.b", "data": n} for n in range(2)]}
    await api.ok("POST", "/v1/events/batch", json=batch, headers=headers)
    params = {"tenant": "acme", "type": "a.b"}
    await api.ok("POST", "/v1/events/raw", params=params, content=b"x", headers=headers)
    assert await _trace_of_events(api) == [TRACE] * 4


@pytest.mark.parametrize(
    "header",
    [
        "",
        "x",
        TRACE.upper(),
        TRACE + "0",
        TRACE + "-x",
        "ff" + TRACE[2:],
        TRACE.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32),
        TRACE.replace("00f067aa0ba902b7", "0" * 16),
        "00-" + "x" * 10_000,
    ],
)
async def test_a_trace_that_is_none_is_ignored(sqlite_api: Api, header: str) -> None:
    request = event()
    headers = request["headers"] | {"traceparent": header}
    await sqlite_api.ok("POST", "/v1/events", **{**request, "headers": headers})
    assert await _trace_of_events(sqlite_api) == [None]
