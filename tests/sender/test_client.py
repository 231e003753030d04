"""The clients against answers of every kind, sync and async alike."""

from __future__ import annotations

import copy
import inspect
import json
import logging
import pickle
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import respx

import sender
from sender import AsyncClient, Client, Published
from sender.errors import ApiError, ApiUnreachable, ClientError
from tests.sender.clients import BASE_URL, KEY, START, Caller, collected
from tests.support.processes import ROOT
from wire import RawJson
from wire.errors import EnvelopeError, SurehookError

EVENTS = f"{BASE_URL}/v1/events"
ACCEPTED = {"id": "evt_1", "deliveries": ["dlv_1", "dlv_2"], "duplicate": False}
EVENT = {"tenant": "acme", "type": "invoice.paid", "data": {"id": 1}}
DELIVERY = {
    "id": "dlv_1", "event": "evt_1", "event_type": "a.b", "endpoint": "ep_1", "tenant": "acme",
    "status": "dead", "reason": "poison", "attempts": 1, "in_flight": False,
    "last_outcome": None, "next_attempt_at": None, "copy_of": None,
    "created_at": "2026-11-29T10:00:00.5Z",
    "ended_at": "2026-11-29T11:00:00+01:00",
}  # fmt: skip


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    """Which client; the test runs once with each."""
    return str(request.param)


@pytest.fixture
async def call(kind: str) -> AsyncIterator[Caller]:
    caller = Caller(kind)
    yield caller
    await caller.close()


@pytest.fixture
def api() -> Iterator[respx.MockRouter]:
    with respx.mock(assert_all_called=False) as router:
        yield router


def accepted(**headers: str) -> httpx.Response:
    return httpx.Response(202, json=ACCEPTED, headers=headers)


def problem(status: int, code: str = "x", **headers: str) -> httpx.Response:
    document = {
        "type": f"urn:surehook:problem:{code}", "title": "Title", "status": status,
        "detail": "What to change.", "instance": "urn:surehook:request:req_1",
    }  # fmt: skip
    return httpx.Response(status, json=document, headers={"x-request-id": "req_1", **headers})


# --- publishing -----------------------------------------------------------------------------


async def test_publish_returns_what_the_library_door_returns(
    call: Caller, api: respx.MockRouter
) -> None:
    route = api.post(EVENTS).mock(return_value=accepted())
    assert await call("publish", **EVENT) == Published("evt_1", ("dlv_1", "dlv_2"), False)
    request = route.calls.last.request
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.headers["content-type"] == "application/json"
    assert json.loads(request.content) == EVENT


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
async def test_f34_one_idempotency_key_for_all_tries_of_a_call(
    call: Caller, api: respx.MockRouter, status: int
) -> None:
    route = api.post(EVENTS)
    route.side_effect = [problem(status), httpx.ReadTimeout, httpx.ConnectError, accepted()]
    await call("publish", **EVENT)
    sent = [made.request for made in route.calls]
    assert len(sent) == 4
    assert len({request.headers["idempotency-key"] for request in sent}) == 1
    assert len({request.content for request in sent}) == 1
    route.side_effect = [accepted()]
    await call("publish", **EVENT)
    other = route.calls.last.request.headers["idempotency-key"]
    assert other != sent[0].headers["idempotency-key"]


async def test_f34_raw_bodies_have_a_key_too(call: Caller, api: respx.MockRouter) -> None:
    route = api.post(f"{EVENTS}/raw")
    route.side_effect = [problem(503), accepted()]
    body = b"\xff\x00 not text"
    await call("publish_raw", tenant="a&b", type="x.y", body=body, content_type="text/csv")
    first, second = (made.request for made in route.calls)
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
    assert first.content == second.content == body
    assert first.headers["content-type"] == "text/csv"
    assert dict(first.url.params) == {"tenant": "a&b", "type": "x.y"}


async def test_f34_operations_have_a_key_too(call: Caller, api: respx.MockRouter) -> None:
    route = api.post(f"{BASE_URL}/v1/operations")
    counted = {"kind": "recover", "matched": 0, "possible": 0, "passed_over": {}}
    answer = httpx.Response(200, json=counted)
    route.side_effect = [problem(503), httpx.ReadTimeout, problem(409), answer, answer]
    for _ in range(2):
        await call("create_operation", kind="recover", dry_run=True)
    *tries, other = (made.request.headers["idempotency-key"] for made in route.calls)
    assert len(tries) == 4
    assert len(set(tries)) == 1
    assert other not in tries
    with pytest.raises(ClientError, match="idempotency_key must be printable ASCII"):
        await call("create_operation", kind="recover", idempotency_key="früh")
    assert route.call_count == 5


@pytest.mark.parametrize(
    ("key", "header"),
    [
        ("invoice-1042", "invoice-1042"),
        ("invoice 1042", '"invoice 1042"'),
        ('a"b\\c', '"a\\"b\\\\c"'),
        ("früh", None),
    ],
)
async def test_a_key_of_ones_own(
    call: Caller, api: respx.MockRouter, key: str, header: str | None
) -> None:
    route = api.post(EVENTS).mock(return_value=accepted())
    await call("publish", **EVENT, idempotency_key=key)
    request = route.calls.last.request
    assert request.headers.get("idempotency-key") == header
    assert json.loads(request.content).get("idempotency_key") == (None if header else key)


@pytest.mark.parametrize("key", ["", "x" * 257, "a\r\nX-B: 1", 7])
async def test_unusable_keys_are_named_before_anything_is_sent(
    call: Caller, api: respx.MockRouter, key: Any
) -> None:
    with pytest.raises(ClientError, match="idempotency_key"):
        await call("publish", **EVENT, idempotency_key=key)
    assert not api.calls


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"id": 8202522731445525542, "n": 10002318}, b'{"id":8202522731445525542,"n":10002318}'),
        ({"w": 64.0, "s": "é/<&\u2028"}, '{"w":64.0,"s":"é/<&\u2028"}'.encode()),
        (10**400, str(10**400).encode()),
        ({"z": 1, "a": 2}, b'{"z":1,"a":2}'),
        (RawJson('{"n": 1.10, "n":1E2,\t"e":"\\u00e9"}'), b'{"n": 1.10, "n":1E2,\t"e":"\\u00e9"}'),
        (None, b"null"),
    ],
)
async def test_a02_a03_b02_data_travels_as_it_is_written_here(
    call: Caller, api: respx.MockRouter, data: Any, text: bytes
) -> None:
    route = api.post(EVENTS).mock(return_value=accepted())
    await call("publish", tenant="acme", type="a.b", data=data)
    content = route.calls.last.request.content
    assert content == b'{"tenant":"acme","type":"a.b","data":' + text + b"}"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud83d", {1: 2}, object()])
async def test_b04_b05_what_is_no_json_is_never_sent(
    call: Caller, api: respx.MockRouter, value: Any
) -> None:
    with pytest.raises(EnvelopeError, match="data"):
        await call("publish", tenant="acme", type="a.b", data={"a": value})
    assert not api.calls


# --- tries ----------------------------------------------------------------------------------


async def test_pauses_double_up_to_the_longest(kind: str, api: respx.MockRouter) -> None:
    call = Caller(kind, retries=7, max_wait=4.0, timeout=100.0)
    api.post(EVENTS).mock(return_value=problem(503))
    with pytest.raises(ApiError) as caught:
        await call("publish", **EVENT)
    assert call.pauses == [0.25, 0.5, 1.0, 2.0, 4.0, 4.0, 4.0]
    assert caught.value.tries == 8
    assert "8 tries" in str(caught.value)
    await call.close()


async def test_pauses_are_spread_at_random(kind: str, api: respx.MockRouter) -> None:
    call = Caller(kind, chance=lambda: 0.0, retries=2)
    api.post(EVENTS).mock(return_value=problem(503))
    with pytest.raises(ApiError):
        await call("publish", **EVENT)
    assert call.pauses == [0.125, 0.25]
    await call.close()


@pytest.mark.parametrize(
    ("value", "pause"),
    [
        ("3", 3.0),
        (" 3 ", 3.0),
        ("0", 0.0),
        ("1800000", 10.0),
        ("9999999999", 10.0),
        ("9" * 5000, 10.0),
        ("Sun, 29 Nov 2026 10:00:05 GMT", 5.0),
        ("Sunday, 29-Nov-26 10:00:05 GMT", 5.0),
        ("Sun Nov 29 10:00:05 2026", 5.0),
        ("Sun, 29 Nov 2026 10:00:05 -0000", 5.0),
        ("Sun, 29 Nov 2026 09:00:00 GMT", 0.0),
        ("-1", 0.25),
        ("1.5", 0.25),
        ("\u0663", 0.25),
        ("soon", 0.25),
        ("", 0.25),
        ("nan", 0.25),
        ("Sun, 29 Nov 99999 10:00:05 GMT", 0.25),
    ],
)
async def test_d07_d09_d10_d11_retry_after_is_heeded_within_bounds(
    call: Caller, api: respx.MockRouter, value: str, pause: float
) -> None:
    refused = problem(503, date="Sun, 29 Nov 2026 10:00:00 GMT")
    refused.headers = httpx.Headers({**refused.headers, "retry-after": value}, encoding="utf-8")
    api.post(EVENTS).side_effect = [refused, accepted()]
    await call("publish", **EVENT)
    assert call.pauses == [pause]


async def test_a_date_is_counted_from_our_clock_when_the_answer_has_none(
    call: Caller, api: respx.MockRouter
) -> None:
    date = httpx.Headers({"retry-after": _http_date(START + 7)})
    api.post(EVENTS).side_effect = [problem(429, **dict(date)), accepted()]
    await call("publish", **EVENT)
    assert call.pauses == [7.0]


def _http_date(seconds: float) -> str:
    from email.utils import formatdate

    return formatdate(seconds, usegmt=True)


async def test_a_call_never_takes_longer_than_its_timeout(kind: str, api: respx.MockRouter) -> None:
    call = Caller(kind, timeout=12.0, max_wait=5.0, retries=50)
    refused = problem(503, **{"retry-after": "60"})
    api.post(EVENTS).mock(return_value=refused)
    with pytest.raises(ApiError) as caught:
        await call("publish", **EVENT)
    assert call.pauses == [5.0, 5.0]
    assert caught.value.retry_after == 60.0
    await call.close()


async def test_each_try_gets_no_more_than_the_time_that_is_left(
    kind: str, api: respx.MockRouter
) -> None:
    call = Caller(kind, timeout=12.0, try_timeout=8.0)
    given = []

    def hang(request: httpx.Request) -> httpx.Response:
        seconds = request.extensions["timeout"]["read"]
        given.append(seconds)
        call.passed += seconds
        raise httpx.ReadTimeout("", request=request)

    api.post(EVENTS).mock(side_effect=hang)
    with pytest.raises(ApiUnreachable, match="no answer within") as caught:
        await call("publish", **EVENT)
    assert given == [8.0, 3.75]
    assert caught.value.tries == 2
    await call.close()


async def test_no_retries_when_told_so(kind: str, api: respx.MockRouter) -> None:
    call = Caller(kind, retries=0)
    route = api.post(EVENTS).mock(return_value=problem(503))
    with pytest.raises(ApiError):
        await call("publish", **EVENT)
    assert route.call_count == 1
    await call.close()


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422])
async def test_a_final_answer_is_not_tried_again(
    call: Caller, api: respx.MockRouter, status: int
) -> None:
    route = api.get(url__startswith=BASE_URL).mock(return_value=problem(status))
    with pytest.raises(ApiError) as caught:
        await call("read_delivery", "dlv_1")
    assert (caught.value.status, route.call_count) == (status, 1)


async def test_a_key_still_at_work_is_waited_for(call: Caller, api: respx.MockRouter) -> None:
    route = api.post(EVENTS)
    route.side_effect = [problem(409), accepted()]
    await call("publish", **EVENT)
    assert route.call_count == 2


UNREPEATABLE = [
    ("redeliver", ("dlv_1",), {}),
    ("cancel_delivery", ("dlv_1",), {}),
    ("create_endpoint", (), {"tenant": "a", "url": "https://h.example"}),
    ("rotate_secret", ("ep_1",), {}),
    ("create_key", (), {"name": "n", "scope": "read"}),
    ("create_tenant", ("a",), {}),
]


@pytest.mark.parametrize(("name", "args", "kwargs"), UNREPEATABLE)
@pytest.mark.parametrize("failure", [500, 503, httpx.ReadError, httpx.RemoteProtocolError])
async def test_e02_what_may_have_arrived_is_not_done_twice(
    call: Caller, api: respx.MockRouter, name: str, args: Any, kwargs: Any, failure: Any
) -> None:
    route = api.route(url__startswith=BASE_URL)
    route.side_effect = [problem(failure) if isinstance(failure, int) else failure, problem(418)]
    with pytest.raises(ClientError) as caught:
        await call(name, *args, **kwargs)
    assert route.call_count == 1
    assert not isinstance(caught.value, ApiUnreachable) or caught.value.may_have_arrived


@pytest.mark.parametrize(("name", "args", "kwargs"), UNREPEATABLE)
@pytest.mark.parametrize("failure", [429, httpx.ConnectError, httpx.ConnectTimeout])
async def test_what_was_surely_not_done_is_tried_again(
    call: Caller, api: respx.MockRouter, name: str, args: Any, kwargs: Any, failure: Any
) -> None:
    route = api.route(url__startswith=BASE_URL)
    route.side_effect = [problem(failure) if isinstance(failure, int) else failure, problem(418)]
    with pytest.raises(ApiError, match="418"):
        await call(name, *args, **kwargs)
    assert route.call_count == 2


async def test_a_repeated_delete_that_finds_nothing_has_succeeded(
    call: Caller, api: respx.MockRouter
) -> None:
    route = api.delete(f"{BASE_URL}/v1/endpoints/ep_1")
    route.side_effect = [httpx.ReadTimeout, problem(404)]
    assert await call("delete_endpoint", "ep_1") is None
    route.side_effect = [problem(404)]
    with pytest.raises(ApiError, match="404"):
        await call("delete_endpoint", "ep_1")
    route.side_effect = [httpx.ConnectError, problem(404)]
    with pytest.raises(ApiError, match="404"):
        await call("delete_endpoint", "ep_1")


async def test_readiness_is_told_at_once(call: Caller, api: respx.MockRouter) -> None:
    route = api.get(f"{BASE_URL}/readyz").mock(return_value=problem(503, "not-ready"))
    with pytest.raises(ApiError) as caught:
        await call("ready")
    assert (route.call_count, caught.value.code) == (1, "not-ready")


# --- errors ---------------------------------------------------------------------------------


async def test_an_error_has_everything_of_the_problem(call: Caller, api: respx.MockRouter) -> None:
    document = {
        "type": "urn:surehook:problem:invalid", "title": "Unprocessable Content", "status": 422,
        "detail": "The request is not valid.", "instance": "urn:surehook:request:req_7",
        "errors": [{"in": "body", "pointer": "#/url", "detail": "is no URL"}], "event": "evt_9",
    }  # fmt: skip
    answer = httpx.Response(422, json=document, headers={"X-Request-Id": "req_7"})
    api.post(EVENTS).mock(return_value=answer)
    with pytest.raises(ApiError) as caught:
        await call("publish", **EVENT)
    error = caught.value
    assert isinstance(error, SurehookError)
    assert (error.status, error.title, error.code) == (422, "Unprocessable Content", "invalid")
    assert (error.type, error.request_id) == ("urn:surehook:problem:invalid", "req_7")
    assert [(f.where, f.pointer, f.detail) for f in error.faults] == [
        ("body", "#/url", "is no URL")
    ]
    assert error.members["event"] == "evt_9"
    text = "422 Unprocessable Content: The request is not valid. (request req_7)"
    assert str(error) == text
    for same in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (str(same), vars(same)) == (text, vars(error))


async def test_an_unreachable_service_is_told_from_its_answers(
    call: Caller, api: respx.MockRouter
) -> None:
    api.post(EVENTS).mock(side_effect=httpx.ConnectError("[Errno 111] Connection refused"))
    with pytest.raises(ApiUnreachable, match=r"POST /v1/events: .*refused") as caught:
        await call("publish", **EVENT)
    error = caught.value
    assert (error.tries, error.may_have_arrived) == (5, False)
    same = pickle.loads(pickle.dumps(error))
    assert (str(same), vars(same)) == (str(error), vars(error))


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(502, text="<html>Bad\x00 Gateway</html>"),
        httpx.Response(404, content=b"\xff\xfe\x00"),
        httpx.Response(500),
        httpx.Response(500, json=["x"]),
        httpx.Response(500, json={"type": 1, "title": {}, "errors": 3}),
        httpx.Response(422, json={"type": "x", "title": 1, "detail": [], "errors": [1, {"in": 2}]}),
        httpx.Response(418, content=b"[" * 100_000),
        httpx.Response(999, content=b"1" * 5000),
        httpx.Response(307, headers={"location": "https://elsewhere.example/"}),
        httpx.Response(200, text="<html>hello</html>"),
        httpx.Response(200, json={"id": "evt_1"}),
        httpx.Response(200, json={**ACCEPTED, "deliveries": "dlv_1"}),
        httpx.Response(200, json={**ACCEPTED, "duplicate": 0}),
        httpx.Response(204),
    ],
)
async def test_any_answer_at_all_is_a_value_or_an_api_error(
    kind: str, api: respx.MockRouter, answer: httpx.Response
) -> None:
    call = Caller(kind, retries=0)
    route = api.route(url__startswith=BASE_URL).mock(return_value=answer)
    for name, args in (
        ("publish", {"tenant": "a", "type": "b", "data": 1}),
        ("read_event", {"event_id": "evt_1"}),
        ("read_contract", {}),
        ("read_endpoint", {"endpoint_id": "ep_1"}),
    ):
        with pytest.raises(ApiError) as caught:
            await call(name, **args)
        assert caught.value.status == answer.status_code
        assert str(caught.value).isprintable()
    with pytest.raises(ApiError):
        await call.all("list_deliveries")
    assert route.call_count == 5
    await call.close()


async def test_the_key_shows_nowhere(
    kind: str, api: respx.MockRouter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    call = Caller(kind, retries=1)
    api.post(EVENTS).side_effect = [
        httpx.ConnectError("x"), httpx.ReadError("y"), problem(401), accepted()
    ]  # fmt: skip
    shown = [repr(call.client), str(call.client)]
    for _ in range(2):
        with pytest.raises(ClientError) as caught:
            await call("publish", **EVENT)
        error = caught.value
        shown += [repr(error), str(error), repr(vars(error))]
        trace = traceback.TracebackException.from_exception(error, capture_locals=True)
        shown.append("".join(trace.format()))
        assert error.__cause__ is None
        assert error.__context__ is None
    await call("publish", **EVENT)
    assert KEY not in "".join(shown).replace(f"KEY = '{KEY}'", "")
    assert KEY not in caplog.text
    await call.close()


@pytest.mark.parametrize(
    "key", ["", " ", "shk_a b", "shk_a\n", "shk_\r\nx-b: 1", "shk_é", "k" * 300, None, b"shk_a"]
)
def test_c19_unusable_api_keys_are_refused_and_not_shown(key: Any) -> None:
    for kind in (Client, AsyncClient):
        with pytest.raises(ClientError, match="key must be") as caught:
            kind(BASE_URL, key)
        assert not key or str(key).strip() == "" or str(key) not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "", "hooks.test", " https://h.example", "ftp://h.example", "https://", "https://u:pw@h.example",
        "https://h.example?x=1", "https://h.example#x", "https://①.example:99999", None,
    ],
)  # fmt: skip
def test_e13_e15_unusable_base_urls_are_refused(url: Any) -> None:
    for kind in (Client, AsyncClient):
        with pytest.raises(ClientError, match="base_url") as caught:
            kind(url, KEY)
        assert "pw" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [{"timeout": 0}, {"try_timeout": float("inf")}, {"max_wait": float("nan")}, {"retries": -1}],
)
def test_unusable_options_are_named(options: dict[str, Any]) -> None:
    for kind in (Client, AsyncClient):
        with pytest.raises(ClientError, match=next(iter(options))):
            kind(BASE_URL, KEY, **options)
        with pytest.raises(ClientError, match="time_out: no such option"):
            kind(BASE_URL, KEY, time_out=3)


async def test_a_closed_client_says_so(call: Caller) -> None:
    await call.close()
    with pytest.raises(ClientError, match="closed"):
        await call("up")


# --- requests and results -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("a/b", b"/v1/tenants/a%2Fb"),
        ("..", b"/v1/tenants/%2E%2E"),
        ("../keys", b"/v1/tenants/..%2Fkeys"),
        ("a?b#c d%2F", b"/v1/tenants/a%3Fb%23c%20d%252F"),
        ("é", b"/v1/tenants/%C3%A9"),
    ],
)
async def test_ids_stay_one_segment_of_the_path(
    call: Caller, api: respx.MockRouter, given: str, path: bytes
) -> None:
    route = api.route(url__startswith=BASE_URL).mock(return_value=problem(404))
    with pytest.raises(ApiError):
        await call("read_tenant", given)
    assert route.calls.last.request.url.raw_path == path


@pytest.mark.parametrize("given", ["", None, 7, "\ud83d"])
async def test_ids_that_are_none_are_named(call: Caller, api: respx.MockRouter, given: Any) -> None:
    with pytest.raises(ClientError, match="endpoint_id"):
        await call("delete_endpoint", given)
    assert not api.calls


async def test_a_prefix_of_the_base_url_is_kept(kind: str, api: respx.MockRouter) -> None:
    call = Caller(kind, "https://h.example/hooks/")
    route = api.get("https://h.example/hooks/healthz").respond(json={"status": "ok"})
    assert (await call("up")).status == "ok"
    assert route.called
    await call.close()


async def test_results_are_typed_and_newer_members_do_no_harm(
    call: Caller, api: respx.MockRouter
) -> None:
    api.get(f"{BASE_URL}/v1/deliveries/dlv_1").respond(json={**DELIVERY, "brand_new": 1})
    delivery = await call("read_delivery", "dlv_1")
    assert delivery.created_at.isoformat() == "2026-11-29T10:00:00.500000+00:00"
    assert delivery.ended_at.isoformat() == "2026-11-29T10:00:00+00:00"
    assert (delivery.attempts, delivery.in_flight, delivery.reason) == (1, False, "poison")
    with pytest.raises(AttributeError):
        delivery.status = "x"


@pytest.mark.parametrize(
    "fault",
    [
        {"attempts": "1"}, {"attempts": True}, {"in_flight": 0}, {"id": None},
        {"created_at": "yesterday"}, {"created_at": 5}, {"status": ["dead"]},
    ],
)  # fmt: skip
async def test_members_of_another_type_are_an_error_that_names_them(
    call: Caller, api: respx.MockRouter, fault: dict[str, Any]
) -> None:
    api.get(f"{BASE_URL}/v1/deliveries/dlv_1").respond(json={**DELIVERY, **fault})
    with pytest.raises(ApiError, match=f"#/{next(iter(fault))}"):
        await call("read_delivery", "dlv_1")


@pytest.mark.parametrize(
    "body",
    [
        b'{"n":1.10,"n":1E2,"big":8202522731445525542}',
        b'{"s":"caf\\u00e9, \\ud83d }],:"}',
        "[\u2028,1]".encode().replace(b",", b"  ,\t"),
        b"1" * 5000,
        b"null",
        b'{"body":{"body":1},"size":3}',
    ],
)
@pytest.mark.parametrize("first", [False, True])
async def test_b01_b02_a_body_is_read_byte_for_byte(
    call: Caller, api: respx.MockRouter, body: bytes, first: bool
) -> None:
    if body.startswith(b"[\xe2"):
        body = b'["\xe2\x80\xa8"  ,\t1]'
    head = (
        b'"id":"evt_1","tenant":"a","type":"b.c","content_type":"application/json",'
        b'"idempotency_key":null,"channels":[],"deliver_at":null,"body_deleted_at":null,'
        b'"created_at":"2026-11-29T10:00:00Z","size":%d,"body_base64":null'
    ) % len(body)
    parts = [b'"body" : %b ' % body, head] if first else [head, b'"body":%b' % body]
    api.get(f"{EVENTS}/evt_1").respond(content=b" { %b }" % b" , ".join(parts))
    event = await call("read_event", "evt_1")
    assert event.body == body


async def test_a_body_that_is_no_json_is_decoded(call: Caller, api: respx.MockRouter) -> None:
    document = {
        "id": "evt_1", "tenant": "a", "type": "b", "content_type": "x/y", "idempotency_key": None,
        "channels": [], "deliver_at": None, "body_deleted_at": None,
        "created_at": "2026-11-29T10:00:00Z", "size": 3, "body": None, "body_base64": "/wAB",
    }  # fmt: skip
    route = api.get(f"{EVENTS}/evt_1").respond(json=document)
    assert (await call("read_event", "evt_1")).body == b"\xff\x00\x01"
    for fault in ({"body_base64": "é"}, {"body_base64": 3}, {"size": 4}, {"body_base64": "/wA"}):
        route.respond(json={**document, **fault})
        with pytest.raises(ApiError, match="not as documented"):
            await call("read_event", "evt_1")


async def test_secrets_do_not_show_in_results(call: Caller, api: respx.MockRouter) -> None:
    answer = {"secret": "whsec_hidden", "public_key": None, "overlap_seconds": 3}
    api.post(f"{BASE_URL}/v1/endpoints/ep_1/secrets/rotate").respond(json=answer)
    rotated = await call("rotate_secret", "ep_1")
    assert rotated.secret == "whsec_hidden"
    assert "hidden" not in repr(rotated)


# --- pages ----------------------------------------------------------------------------------


def _pages(api: respx.MockRouter, *cursors: str | None) -> respx.Route:
    route = api.get(url__startswith=f"{BASE_URL}/v1/deliveries")
    route.side_effect = [
        httpx.Response(200, json={"items": [DELIVERY] * 2, "next_cursor": cursor})
        for cursor in cursors
    ]
    return route


async def test_a_list_is_read_to_its_end_page_by_page(call: Caller, api: respx.MockRouter) -> None:
    route = _pages(api, "c/1+=", "c2", None)
    items = await call.all("list_deliveries", tenant="a b", status="dead")
    assert len(items) == 6
    queries = [dict(made.request.url.params) for made in route.calls]
    first = {"limit": "200", "tenant": "a b", "status": "dead"}
    assert queries == [first, {**first, "cursor": "c/1+="}, {**first, "cursor": "c2"}]


async def test_pages_are_fetched_as_they_are_needed(call: Caller, api: respx.MockRouter) -> None:
    route = _pages(api, "c1", "c2", None)
    pages = call.client.list_deliveries(limit=2)
    assert not route.called
    if isinstance(call.client, Client):
        assert next(iter(pages)).id == "dlv_1"
    else:
        iterator = aiter(pages)
        assert (await anext(iterator)).id == "dlv_1"
        await iterator.aclose()
    assert route.call_count == 1


async def test_whole_pages_and_going_on_later(call: Caller, api: respx.MockRouter) -> None:
    _pages(api, "c1", None)
    pages = await collected(call.client.list_deliveries().pages())
    assert [(len(page.items), page.next_cursor) for page in pages] == [(2, "c1"), (2, None)]
    route = _pages(api, None)
    await call.all("list_deliveries", cursor="c1", since=pages[0].items[0].created_at)
    query = dict(route.calls.last.request.url.params)
    assert query == {"limit": "200", "cursor": "c1", "since": "2026-11-29T10:00:00.500000Z"}


async def test_f33_a_page_that_names_itself_as_the_next_ends_in_an_error(
    call: Caller, api: respx.MockRouter
) -> None:
    _pages(api, "c1", "c1", "c1")
    with pytest.raises(ApiError, match="names itself"):
        await call.all("list_deliveries")


async def test_a_page_is_tried_again_like_any_call(call: Caller, api: respx.MockRouter) -> None:
    route = api.get(url__startswith=f"{BASE_URL}/v1/deliveries")
    page = httpx.Response(200, json={"items": [DELIVERY], "next_cursor": None})
    route.side_effect = [httpx.ReadError, problem(503), page]
    assert len(await call.all("list_deliveries")) == 1


# --- the package ----------------------------------------------------------------------------


def test_the_public_surface_is_small() -> None:
    assert len(sender.__all__) <= 10
    assert list(sender.__all__) == sorted(sender.__all__)
    for name in sender.__all__:
        assert inspect.getdoc(getattr(sender, name))
    with pytest.raises(AttributeError, match="no attribute 'Clint'"):
        sender.Clint  # noqa: B018


def test_publishing_in_a_transaction_loads_no_http_client() -> None:
    code = "import sys, sender; sys.exit('httpx' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)
