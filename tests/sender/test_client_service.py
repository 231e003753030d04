"""The clients against the real service, over loopback, and against slow and broken servers."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from sqlalchemy import select

from delivery_service.bootstrap import build
from delivery_service.store import attempts, keys
from sender import AsyncClient, Client
from sender.client import given, results, traffic
from sender.client.binding import listing, operation
from sender.errors import ApiError, ApiUnreachable
from sender.tables import events
from tests.sender.clients import KEY, Caller
from tests.support.ports import HOST, free_port
from tests.support.processes import ROOT
from tests.support.receiver import HANG, RESET, Answer, Receiver
from tests.support.stored import settings_for
from tests.support.tables import create_tables, sync_engine
from tests.support.waiting import DEADLINE, wait_until_async
from wire import RawJson
from wire.ids import ATTEMPT, new_id

HOOK = "http://127.0.0.1:18099/hook"


@dataclass(frozen=True)
class Served:
    """A service that listens, and an admin's key for it."""

    url: str
    key: str
    database_url: str
    openapi: dict[str, Any]

    def add_attempt(self, delivery_id: str, endpoint_id: str) -> None:
        """Store what a worker would store."""
        row = {
            "id": new_id(ATTEMPT), "delivery_id": delivery_id, "endpoint_id": endpoint_id,
            "number": 1, "late": False, "started_at": datetime.now(UTC), "duration": 0.5,
            "url": HOOK, "kind": "status", "status_code": 500, "error": None,
            "may_have_arrived": True, "request_headers": '{"webhook-id": "dlv_1"}',
            "response_headers": '[["x-a", "1"], ["x-a", "2"]]', "response_body": b"\xff no",
            "response_truncated": False,
        }  # fmt: skip
        engine = sync_engine(self.database_url)
        with engine.begin() as connection:
            attempts.insert(connection, [row])
        engine.dispose()

    def events_of(self, tenant: str) -> int:
        engine = sync_engine(self.database_url)
        with engine.connect() as connection:
            found = connection.execute(select(events.c.id).where(events.c.tenant_id == tenant))
            count = len(found.all())
        engine.dispose()
        return count


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The API in a thread of its own."""
    folder: Path = tmp_path_factory.mktemp("served")
    url = f"sqlite+aiosqlite:///{folder / 'surehook.sqlite3'}"
    create_tables(url)
    engine = sync_engine(url)
    with engine.begin() as connection:
        key = keys.create(connection, name="tests", scope="admin").key
    engine.dispose()
    service = build(settings_for(url))
    app = service.api()
    listener = socket.create_server((HOST, 0))
    server = uvicorn.Server(
        uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", ws="none")
    )

    async def serve() -> None:
        await server.serve(sockets=[listener])
        await service.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    yield Served(f"http://{HOST}:{listener.getsockname()[1]}", key, url, app.openapi())
    server.should_exit = True
    thread.join(20)
    assert not thread.is_alive()


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def call(kind: str, served: Served) -> AsyncIterator[Caller]:
    caller = Caller(kind, served.url, served.key)
    yield caller
    await caller.close()


@pytest.fixture
def tenant(request: pytest.FixtureRequest) -> str:
    """A tenant of the test's own, whose id needs escaping wherever it is used."""
    return f"{request.node.name} ü/..?&%2F#"


# --- nothing drifts from the API ------------------------------------------------------------

RENAMED = {"publish_event": "publish", "publish_raw_event": "publish_raw"}
SCHEMAS = {
    name: each
    for module in (results, traffic)
    for name, each in vars(module).items()
    if inspect.isclass(each)
    and each.__module__ == module.__name__
    # Pages are generic, and an entry of a feed is a part of an item.
    and name not in ("Page", "FeedEntry")
}


def _operations(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found = {
        operation["operationId"]: operation
        for path in document["paths"].values()
        for operation in path.values()
    }
    return {RENAMED.get(name, name): each for name, each in found.items()}


def test_there_is_a_method_for_every_operation_of_the_api(served: Served) -> None:
    for kind in (Client, AsyncClient):
        methods = {
            name
            for name in dir(kind)
            if isinstance(inspect.getattr_static(kind, name), operation | listing)
        }
        assert methods == set(_operations(served.openapi))
        for name in methods:
            assert inspect.getdoc(getattr(kind, name))


@pytest.mark.parametrize("name", SCHEMAS)
def test_results_mirror_the_schemas(served: Served, name: str) -> None:
    properties = set(served.openapi["components"]["schemas"][name]["properties"])
    # One member for the body, in whichever of the two forms it came.
    assert {each.name for each in fields(SCHEMAS[name])} == properties - {"body_base64"}


@pytest.mark.parametrize(
    ("members", "schema", "named"),
    [
        ("TenantSettings", "TenantSettings", set()),
        ("NewEndpoint", "NewEndpoint", {"tenant", "url"}),
        ("EndpointChange", "EndpointChange", set()),
        ("Rotation", "Rotation", set()),
        ("NewKey", "NewApiKey", {"name", "scope"}),
        ("NewOperation", "NewOperation", {"kind"}),
    ],
)
def test_members_mirror_the_schemas(
    served: Served, members: str, schema: str, named: set[str]
) -> None:
    properties = set(served.openapi["components"]["schemas"][schema]["properties"])
    assert set(getattr(given, members).__annotations__) | named == properties


@pytest.mark.parametrize(
    ("filters", "name"),
    [
        ("EventFilter", "list_events"),
        ("DeliveryFilter", "list_deliveries"),
        ("EndpointFilter", "list_endpoints"),
        ("KeyFilter", "list_keys"),
        ("OperationFilter", "list_operations"),
        ("Paging", "list_tenants"),
        ("Paging", "list_attempts"),
    ],
)
def test_filters_mirror_the_parameters(served: Served, filters: str, name: str) -> None:
    parameters = _operations(served.openapi)[name]["parameters"]
    names = {each["name"] for each in parameters if each["in"] == "query"}
    assert set(getattr(given, filters).__annotations__) == names


# --- every operation ------------------------------------------------------------------------


async def test_endpoints_and_their_secrets(call: Caller, tenant: str) -> None:
    settings: dict[str, Any] = {
        "description": "Production", "event_types": ["invoice.*"], "schedule": [1, 2.5],
        "timeout": 3, "max_in_flight": 7, "rate_limit": 2.5, "headers": {"X-Gateway-Key": "s3"},
    }  # fmt: skip
    made = await call("create_endpoint", tenant=tenant, url=HOOK, **settings)
    assert made.secret.startswith("whsec_")
    assert made.tenant == tenant
    assert made.event_types == ("invoice.*",)
    assert (made.timeout, made.max_in_flight, made.rate_limit) == (3.0, 7, 2.5)
    assert set(made.headers) == {"X-Gateway-Key"}
    assert made.circuit.state == "closed"
    assert abs(made.created_at - datetime.now(UTC)) < timedelta(minutes=5)
    shown = await call("read_endpoint", made.id)
    assert (shown.id, shown.schedule) == (made.id, made.schedule)
    changed = await call("change_endpoint", made.id, timeout=None, description="Test")
    assert (changed.timeout, changed.description, changed.max_in_flight) == (None, "Test", 7)
    assert (await call("disable_endpoint", made.id)).status == "disabled"
    [disabled] = await call.all("list_endpoints", tenant=tenant, status="disabled")
    assert disabled.disabled_reason == "operator"
    assert (await call("enable_endpoint", made.id)).status == "enabled"
    rotated = await call("rotate_secret", made.id, secret_kind="whsk", overlap_seconds=60)
    assert rotated.public_key.startswith("whpk_")
    listed = await call("list_secrets", made.id)
    assert [each.kind for each in listed.items] == ["whsk", "whsec"]
    assert await call("delete_endpoint", made.id) is None
    with pytest.raises(ApiError) as caught:
        await call("read_endpoint", made.id)
    assert (caught.value.status, caught.value.code) == (404, "not-found")


async def test_tenants_of_any_id(call: Caller, kind: str) -> None:
    for name in (f"{kind}", f"{kind}/..", "..", ".", f"{kind} ?#&%2F", f"{kind}é🚀", f"{kind}+"):
        put = await call("put_tenant", name, name="Acme Ltd")
        assert (put.id, put.name) == (name, "Acme Ltd")
        assert (await call("read_tenant", name)).id == name
        changed = await call("change_tenant", name, schedule="fast", name=None)
        assert (changed.schedule, changed.name) == ("fast", None)
    made = await call("create_tenant", f"{kind}-new", profiles=["standard"])
    assert made.profiles == ("standard",)
    with pytest.raises(ApiError) as caught:
        await call("create_tenant", f"{kind}-new")
    assert caught.value.code == "tenant-exists"
    everybody = [each.id for each in await call.all("list_tenants", limit=2)]
    assert len(set(everybody)) == len(everybody)
    assert {f"{kind}/..", "..", f"{kind}é🚀", f"{kind}-new"} <= set(everybody)


async def test_operations(call: Caller, tenant: str) -> None:
    since = datetime(2026, 1, 1, tzinfo=UTC)
    await call("create_endpoint", tenant=tenant, url=HOOK)
    await call("publish", tenant=tenant, type="invoice.paid", data=1)
    where = {"kind": "cancel", "since": since, "tenant": tenant}
    counted = await call("create_operation", **where, dry_run=True)
    assert counted == traffic.OperationCount(kind="cancel", matched=1, possible=1, passed_over={})
    made = await call("create_operation", **where)
    assert (made.kind, made.status, made.progress) == ("cancel", "queued", 0.0)
    assert made.filter == {"since": "2026-01-01T00:00:00Z", "tenant": tenant}
    assert await call("read_operation", made.id) == made
    assert made in await call.all("list_operations", kind="cancel", status="queued", limit=1)
    cancelled = await call("cancel_operation", made.id)
    assert cancelled.status == "cancelled"
    assert made.idempotency_key is not None
    key = {"idempotency_key": made.idempotency_key}
    assert await call("create_operation", **where, **key) == cancelled
    with pytest.raises(ApiError) as caught:
        await call("create_operation", **{**where, "kind": "recover"}, **key)
    assert caught.value.code == "idempotency-key-reused"
    assert caught.value.members["operation"] == made.id
    flash = await call(
        "create_operation", kind="broadcast", type="news.flash", data=RawJson('{"a": 1.10}')
    )
    assert (flash.filter, flash.progress) == ({"type": "news.flash"}, None)
    await call("cancel_operation", flash.id)
    with pytest.raises(ApiError) as caught:
        await call("create_operation", kind="recover")
    assert [fault.pointer for fault in caught.value.faults] == ["#/since"]


async def test_events_and_deliveries(call: Caller, served: Served, tenant: str) -> None:
    first = await call("create_endpoint", tenant=tenant, url=HOOK)
    await call("create_endpoint", tenant=tenant, url=HOOK, event_types=["other.*"])
    start = datetime.now(UTC) - timedelta(minutes=5)
    done = await call("publish", tenant=tenant, type="invoice.paid", data={"n": 1})
    assert len(done.delivery_ids) == 1
    assert not done.duplicate
    [event] = await call.all("list_events", tenant=tenant, type="invoice.paid", since=start)
    assert (event.id, event.tenant) == (done.event_id, tenant)
    assert await call.all("list_events", tenant=tenant, until=start) == []
    where = {"tenant": tenant, "endpoint": first.id, "event": done.event_id, "since": start}
    [delivery] = await call.all("list_deliveries", **where, status="pending")
    assert delivery == await call("read_delivery", done.delivery_ids[0])
    assert await call.all("list_attempts", delivery.id) == []
    served.add_attempt(delivery.id, first.id)
    [attempt] = await call.all("list_attempts", delivery.id, limit=1)
    assert (attempt.number, attempt.status_code, attempt.duration) == (1, 500, 0.5)
    assert attempt.response_headers == (("x-a", "1"), ("x-a", "2"))
    assert attempt.response_body == "\N{REPLACEMENT CHARACTER} no"
    assert (await call("cancel_delivery", delivery.id)).status == "cancelled"
    with pytest.raises(ApiError) as caught:
        await call("cancel_delivery", delivery.id)
    assert caught.value.code == "not-pending"
    assert (await call("redeliver", delivery.id)).status == "pending"


async def test_portal_tokens(call: Caller, kind: str, served: Served) -> None:
    tenant = f"portal of {kind}"
    await call("create_endpoint", tenant=tenant, url="https://hooks.example.com/in")
    made = await call("create_portal_token", tenant=tenant, expires_in_seconds=600)
    assert made.tenant == tenant
    assert made.token not in repr(made)
    own = Caller(kind, served.url, made.token)
    [endpoint] = await own.all("list_endpoints")
    assert endpoint.tenant == tenant
    [found] = await call.all("list_keys", tenant=tenant, portal=True)
    assert (found.id, found.expires_at) == (made.id, made.expires_at)
    await call("revoke_key", made.id)
    with pytest.raises(ApiError):
        await own.all("list_endpoints")
    await own.close()


async def test_keys(call: Caller, kind: str, served: Served) -> None:
    soon = datetime.now(UTC) + timedelta(days=1)
    made = await call(
        "create_key", name=kind, scope="tenant", tenant=kind, expires_at=soon, rate_limit=9
    )
    assert (made.rate_limit, made.portal) == (9, False)
    assert (made.scope, made.tenant, made.expires_at) == ("tenant", kind, soon)
    assert made.key not in repr(made)
    assert (await call("read_key", made.id)).hint == made.hint
    [found] = await call.all("list_keys", tenant=kind)
    assert found.id == made.id
    own = Caller(kind, served.url, made.key)
    assert await own.all("list_endpoints") == []
    with pytest.raises(ApiError) as caught:
        await own("publish", tenant=kind, type="a.b", data=1)
    assert caught.value.code == "forbidden"
    await call("revoke_key", made.id)
    with pytest.raises(ApiError) as caught:
        await own.all("list_endpoints")
    assert (caught.value.status, caught.value.code) == (401, "unauthenticated")
    await own.close()


async def test_the_service_itself(call: Caller) -> None:
    assert (await call("up")).status == "ok"
    contract = await call("read_contract")
    assert contract.schedule.max_attempts == 6
    with pytest.raises(ApiError) as caught:
        await call("ready")
    assert caught.value.code == "not-ready"
    assert caught.value.members["reasons"]
    assert call.pauses == []


# --- what must arrive -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (RawJson('{"n": 1.10,\t"n":1E2,"u":"\\u00e9\\u0000"}'), None),
        ({"big": 8202522731445525542, "w": 64.0, "s": "🚀\u2028</é"}, None),
        (10**400, str(10**400).encode()),
        ("\x00", b'"\\u0000"'),
    ],
)
async def test_a08_a12_b02_b07_data_is_stored_as_it_is_written_here(
    call: Caller, tenant: str, data: Any, text: bytes | None
) -> None:
    done = await call("publish", tenant=tenant[-200:], type="a.b", data=data)
    event = await call("read_event", done.event_id)
    if text is None:
        raw = isinstance(data, RawJson)
        compact = json.dumps(data, ensure_ascii=False, separators=(",", ":")) if not raw else ""
        text = data.content if raw else compact.encode()
    assert event.body.endswith(b',"data":' + text + b"}")
    assert event.size == len(event.body)


@pytest.mark.parametrize("body", [b"", b"\xff\x00", b"{ }", b"a=1&b=2", b"1" * 5000, b"[1e400]"])
async def test_a09_raw_bodies_are_stored_byte_for_byte(
    call: Caller, tenant: str, body: bytes
) -> None:
    where = {"tenant": tenant[-200:], "type": "a.b", "content_type": "text/x-test"}
    done = await call("publish_raw", body=body, **where)
    event = await call("read_event", done.event_id)
    assert (event.body, event.content_type) == (body, "text/x-test")


class Losing(httpx.HTTPTransport):
    """Hands requests to the service, and loses the first answers."""

    left = 2

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = super().handle_request(request)
        if self.left:
            self.left -= 1
            response.close()
            raise httpx.ReadError("lost", request=request)
        return response


class AsyncLosing(httpx.AsyncHTTPTransport):
    """`Losing` for the asynchronous client."""

    left = 2

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        if self.left:
            self.left -= 1
            await response.aclose()
            raise httpx.ReadError("lost", request=request)
        return response


async def test_f34_lost_answers_make_one_event(kind: str, served: Served, tenant: str) -> None:
    losing = {"sync": Losing, "async": AsyncLosing}[kind]
    call = Caller(kind, served.url, served.key, transport=losing())
    done = await call("publish", tenant=tenant, type="a.b", data={"n": 1})
    assert done.duplicate
    assert len(call.pauses) == 2
    assert served.events_of(tenant) == 1
    again = await call("publish", tenant=tenant, type="a.b", data={"n": 1})
    assert again.event_id != done.event_id
    await call.close()


async def test_a_key_that_was_used_for_other_content_names_its_event(
    call: Caller, tenant: str
) -> None:
    for key in ("k-1", 'k "2"', "schlüssel"):
        event = {"tenant": tenant, "type": "a.b", "idempotency_key": key}
        done = await call("publish", data=1, **event)
        assert await call("publish", data=1, **event) == type(done)(
            done.event_id, done.delivery_ids, duplicate=True
        )
        assert (await call("read_event", done.event_id)).idempotency_key == key
        with pytest.raises(ApiError) as caught:
            await call("publish", data=2, **event)
        assert caught.value.code == "idempotency-key-reused"
        assert caught.value.members["event"] == done.event_id


async def test_refusals_say_what_to_change(call: Caller, tenant: str) -> None:
    with pytest.raises(ApiError) as caught:
        await call("create_endpoint", tenant=tenant, url=" https://h.example/")
    assert caught.value.status == 422
    [fault] = caught.value.faults
    assert (fault.where, fault.pointer) == ("body", "#/url")
    assert caught.value.request_id.startswith("req_")
    with pytest.raises(ApiError) as caught:
        await call("change_endpoint", "ep_none", nope=1)
    assert caught.value.status in (404, 422)
    with pytest.raises(ApiError) as caught:
        await call("publish", tenant=tenant, type="a.b", data="x" * 300_000)
    assert caught.value.status == 413


async def test_f33_every_item_is_on_one_page_only(call: Caller, tenant: str) -> None:
    published = [
        (await call("publish", tenant=tenant, type="a.b", data=n)).event_id for n in range(6)
    ]
    for limit in (1, 2, 3, 4, 6, 7):
        found = [each.id for each in await call.all("list_events", tenant=tenant, limit=limit)]
        assert found == published[::-1]


def test_threads_can_share_a_client(served: Served, tenant: str) -> None:
    with Client(served.url, served.key) as client, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: client.publish(tenant=tenant, type="a.b", data=n), range(40)))
    assert served.events_of(tenant) == 40


async def test_tasks_can_share_a_client(served: Served, tenant: str) -> None:
    async with AsyncClient(served.url, served.key) as client, asyncio.TaskGroup() as group:
        for n in range(40):
            group.create_task(client.publish(tenant=tenant, type="a.b", data=n))
    assert served.events_of(tenant) == 40


async def test_the_examples_of_the_documentation_run(
    served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SUREHOOK_URL", served.url)
    monkeypatch.setenv("SUREHOOK_KEY", served.key)
    page = (ROOT / "docs" / "how-to" / "use-the-sdk-client.md").read_text("utf-8")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    names: dict[str, Any] = {}
    exec(compile(code, "use-the-sdk-client.md", "exec"), names)
    await names["announce"](7)
    names["client"].close()
    printed = capsys.readouterr().out
    assert "whsec_" in printed
    assert "404 not-found There is no such delivery. () req_" in printed


# --- slow and broken servers ----------------------------------------------------------------

QUICK = {"try_timeout": 0.5, "timeout": 5.0, "retries": 0}
UP = b'{"status":"ok"}'
DRIPPING_HEADERS = Answer(body=UP, headers=(("x-long", "x" * 4000),), drip=0.03)
DRIPPING_BODY = Answer(body=b" " * 4000 + UP, drip=0.03)
"""Two minutes each, unless it is cut off."""


@pytest.mark.parametrize("answer", [HANG, DRIPPING_HEADERS, DRIPPING_BODY])
async def test_e01_e08_an_answer_that_drips_in_ends_with_the_try(
    kind: str, receiver: Receiver, answer: Answer
) -> None:
    receiver.script("/healthz", answer)
    call = Caller(kind, receiver.url(""), KEY, **QUICK)
    # In a thread, so that the test ends even if a blocking call does not.
    trying = asyncio.to_thread(call.client.up) if kind == "sync" else call("up")
    with pytest.raises(ApiUnreachable, match=r"no answer within 0\.5 s") as caught:
        await asyncio.wait_for(trying, DEADLINE)
    assert caught.value.may_have_arrived
    receiver.script("/healthz", Answer(body=UP))
    assert (await call("up")).status == "ok"
    await call.close()


@pytest.mark.parametrize("answer", [RESET, Answer(raw=b"\x00\xff nonsense\r\n\r\n")])
async def test_e02_broken_connections_are_tried_again(
    kind: str, receiver: Receiver, answer: Answer
) -> None:
    receiver.script("/healthz", answer, answer, Answer(body=UP))
    call = Caller(kind, receiver.url(""), KEY)
    assert (await call("up")).status == "ok"
    assert len(call.pauses) == 2
    await call.close()


async def test_e05_e06_an_endless_answer_is_cut_off(
    kind: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sender.client.clients.MAX_ANSWER_BYTES", 100_000)
    receiver.script("/healthz", Answer(body=b"x" * 1_000_000))
    call = Caller(kind, receiver.url(""), KEY, retries=0)
    with pytest.raises(ApiUnreachable, match="more than 100000 bytes"):
        await call("up")
    [request] = receiver.received("/healthz")
    assert request.header("accept-encoding") == "identity"
    await call.close()


async def test_d13_redirects_are_not_followed(kind: str, receiver: Receiver) -> None:
    moved = Answer(status=307, headers=(("location", "/elsewhere"),))
    receiver.script("/v1/events", moved)
    call = Caller(kind, receiver.url(""), KEY)
    with pytest.raises(ApiError, match="redirects are not followed") as caught:
        await call("publish", tenant="a", type="b.c", data=1)
    assert caught.value.status == 307
    assert receiver.received("/elsewhere") == []
    await call.close()


async def test_nobody_listens(kind: str) -> None:
    call = Caller(kind, f"http://{HOST}:{free_port()}", KEY)
    with pytest.raises(ApiUnreachable) as caught:
        await call("redeliver", "dlv_1")
    assert not caught.value.may_have_arrived
    assert len(call.pauses) == 4
    await call.close()


@pytest.mark.parametrize("trust_env", [False, True])
async def test_e23_proxies_of_the_environment_only_if_told_so(
    kind: str, served: Served, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, trust_env: bool
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, receiver.url(""))
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    call = Caller(kind, served.url, served.key, trust_env=trust_env, retries=0)
    if trust_env:
        with pytest.raises(ApiError):
            await call("up")
    else:
        assert (await call("up")).status == "ok"
    assert bool(receiver.requests) is trust_env
    await call.close()


async def test_e04_a_cancelled_call_leaves_the_client_usable(receiver: Receiver) -> None:
    receiver.script("/healthz", HANG, Answer(body=UP))
    async with AsyncClient(receiver.url(""), KEY) as client:
        task = asyncio.create_task(client.up())
        await wait_until_async(lambda: receiver.received("/healthz"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await client.up()).status == "ok"
