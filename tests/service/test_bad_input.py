"""Whatever comes in, the answer is the right 4xx problem document and nothing is stored."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.service.caller import URL, Api, event, problem_in

JSON = {"content-type": "application/json"}
NO_ID = "01M8MZ1BD68JM5KXSYHDE9A657"


def _members(problem: dict[str, Any]) -> list[str]:
    return [error["pointer"] for error in problem.get("errors", ())]


@pytest.mark.parametrize("kind", ["none", "basic", "empty", "unknown", "long", "not-ours", "odd"])
async def test_without_a_good_key_the_answer_is_401_before_the_body_is_read(
    api: Api, kind: str
) -> None:
    header = {
        "basic": b"Basic c2hrOmtleQ==",
        "empty": b"Bearer ",
        "unknown": b"Bearer shk_" + b"A" * 43,
        "long": b"Bearer shk_" + b"A" * 5000,
        "not-ours": b"Bearer sk_live_1",
        "odd": b"Bearer shk_\xff\xfe\x00",
    }
    headers = {"authorization": header[kind]} if kind in header else {}
    answer = await api.client.post("/v1/events", headers={**headers, **JSON}, content=b"{nonsense")
    assert answer.status_code == 401
    assert problem_in(answer)["type"].endswith(":unauthenticated")
    assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 422),
        (b"{", 400),
        (b"\xff\xfe{\x00}\x00", 400),
        (b"\xef\xbb\xbf{}", 400),
        (b'{"tenant":"a\xc3"}', 400),
        (b'{"tenant":"\xed\xa0\xbd"}', 400),
        (b'{"tenant":"\\ud83d"}', 400),
        (b'{"tenant":NaN}', 400),
        (b'{"tenant":' + b"9" * 5000 + b"}", 400),
        (b"[" * 50_000, 400),
        (b"{} {}", 400),
        (b"[]", 422),
        (b"null", 422),
        (b'"text"', 422),
        (b"12", 422),
        (b"{}", 422),
        (b"x" * (300 * 1024), 413),
    ],
)
@pytest.mark.parametrize("path", ["/v1/events", "/v1/endpoints", "/v1/tenants", "/v1/keys"])
async def test_bodies_that_are_no_request(
    sqlite_api: Api, path: str, content: bytes, status: int
) -> None:
    await sqlite_api.problem(status, "POST", path, content=content, headers=JSON)


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", None])
async def test_another_content_type_is_415(sqlite_api: Api, content_type: str | None) -> None:
    headers = {"content-type": content_type} if content_type else {}
    content = event()["content"]
    await sqlite_api.problem(415, "POST", "/v1/events", content=content, headers=headers)


@pytest.mark.parametrize(
    ("members", "pointer"),
    [
        ({"tenant": ""}, "#/tenant"),
        ({"tenant": "a\0b"}, "#/tenant"),
        ({"tenant": "a\nb"}, "#/tenant"),
        ({"tenant": "x" * 257}, "#/tenant"),
        ({"tenant": 7}, "#/tenant"),
        ({"tenant": None}, "#/tenant"),
        ({"type": "no spaces"}, "#/type"),
        ({"type": "a..b"}, "#/type"),
        ({"type": "a\0"}, "#/type"),
        ({"type": "é"}, "#/type"),
        ({"type": "a" * 129}, "#/type"),
        ({"type": ["a"]}, "#/type"),
        ({"idempotency_key": ""}, "#/idempotency_key"),
        ({"idempotency_key": "a\0"}, "#/idempotency_key"),
        ({"idempotency_key": "k" * 257}, "#/idempotency_key"),
        ({"tenat": "acme"}, "#/tenat"),
        ({"~a/b": 1}, "#/~0a~1b"),
    ],
)
async def test_members_of_an_event(api: Api, members: dict[str, Any], pointer: str) -> None:
    body = {"tenant": "acme", "type": "a.b", "data": {}, **members}
    problem = await api.problem(422, "POST", "/v1/events", json=body)
    assert _members(problem) == [pointer]
    assert (await api.ok("GET", "/v1/events"))["items"] == []


@pytest.mark.parametrize("missing", ["tenant", "type", "data"])
async def test_missing_members_of_an_event(sqlite_api: Api, missing: str) -> None:
    body = {"tenant": "acme", "type": "a.b", "data": {}}
    del body[missing]
    problem = await sqlite_api.problem(422, "POST", "/v1/events", json=body)
    assert _members(problem) == [f"#/{missing}"]


ENDPOINT_FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"url": "nope"}, "#/url"),
    ({"url": "ftp://h.example/"}, "#/url"),
    ({"url": "https://"}, "#/url"),
    ({"url": "https://h.example:99999/"}, "#/url"),
    ({"url": "https://h.example/#part"}, "#/url"),
    ({"url": "https://h.example/a\0"}, "#/url"),
    ({"url": "https://h.example/" + "a" * 2050}, "#/url"),
    ({"url": 5}, "#/url"),
    ({"url": None}, "#/url"),
    ({"event_types": ["a b"]}, "#/event_types"),
    ({"event_types": ["a.**"]}, "#/event_types"),
    ({"event_types": [1]}, "#/event_types/0"),
    ({"event_types": "a"}, "#/event_types"),
    ({"event_types": [f"t{n}" for n in range(201)]}, "#/event_types"),
    ({"schedule": "soon"}, "#/schedule"),
    ({"schedule": [-1]}, "#/schedule"),
    ({"schedule": "1m," * 60 + "1m"}, "#/schedule"),
    ({"schedule": [1e300]}, "#/schedule"),
    ({"profiles": ["nope"]}, "#/profiles"),
    ({"profiles": []}, "#/profiles"),
    ({"profiles": ["standard", "standard"]}, "#/profiles"),
    ({"timeout": 0}, "#/timeout"),
    ({"timeout": 1000}, "#/timeout"),
    ({"timeout": "5"}, "#/timeout"),
    ({"timeout": True}, "#/timeout"),
    ({"max_in_flight": 0}, "#/max_in_flight"),
    ({"max_in_flight": 1.5}, "#/max_in_flight"),
    ({"max_in_flight": 10**30}, "#/max_in_flight"),
    ({"rate_limit": 0}, "#/rate_limit"),
    ({"rate_limit": -1}, "#/rate_limit"),
    ({"description": "a\0b"}, "#/description"),
    ({"description": "x" * 1001}, "#/description"),
    ({"headers": {"X-A": 1}}, "#/headers/X-A"),
    ({"headers": ["X-A"]}, "#/headers"),
    ({"colour": "red"}, "#/colour"),
]


def _named(problem: dict[str, Any]) -> set[str]:
    # A member of two types (schedule) is named once for each.
    return {"/".join(pointer.split("/")[:2]) for pointer in _members(problem)}


@pytest.mark.parametrize(("members", "pointer"), ENDPOINT_FAULTS)
async def test_members_of_an_endpoint(
    sqlite_api: Api, members: dict[str, Any], pointer: str
) -> None:
    body = {"tenant": "acme", "url": URL, **members}
    problem = await sqlite_api.problem(422, "POST", "/v1/endpoints", json=body)
    assert _named(problem) == {"/".join(pointer.split("/")[:2])}
    assert (await sqlite_api.ok("GET", "/v1/endpoints"))["items"] == []
    created = await sqlite_api.endpoint()
    problem = await sqlite_api.problem(422, "PATCH", f"/v1/endpoints/{created['id']}", json=members)
    assert _named(problem) == {"/".join(pointer.split("/")[:2])}


SECRET_FAULTS = [
    "whsec_!!!!",
    "whsec_",
    "whsec_QQ==",
    "",
    "   ",
    "v1,whsec_" + "A" * 32,
    " whsec_" + "A" * 32,
    "whsec_" + "A" * 31,
    "whsec_" + "A" * 88 + "==",
    "sk_" + "A" * 32,
    "whpk_" + "A" * 43 + "=",
    "whsk_" + "A" * 86 + "==",
    "whsec_" + "é" * 32,
    "whsec_" + "A" * 32 + "\0",
]


@pytest.mark.parametrize("secret", SECRET_FAULTS)
async def test_c07_bad_secrets_are_refused_and_not_repeated(sqlite_api: Api, secret: str) -> None:
    body = {"tenant": "acme", "url": URL, "secret": secret}
    problem = await sqlite_api.problem(422, "POST", "/v1/endpoints", json=body)
    assert _members(problem) == ["#/secret"]
    endpoint = await sqlite_api.endpoint()
    path = f"/v1/endpoints/{endpoint['id']}/secrets/rotate"
    rotated = await sqlite_api.problem(422, "POST", path, json={"secret": secret})
    assert _members(rotated) == ["#/secret"]
    if len(secret.strip()) > 10:
        assert secret not in json.dumps([problem, rotated], ensure_ascii=False)


@pytest.mark.parametrize(
    "headers",
    [
        {"X-A": "a\r\nX-B: 1"},
        {"X-A": "a\n"},
        {"X-A": "a\0"},
        {"X-A": "é"},
        {"X-A": "🚀"},
        {"X-A": " a"},
        {"X A": "1"},
        {"X-A:": "1"},
        {"X-A\r\nX-B": "1"},
        {"é": "1"},
        {"": "1"},
        {"Host": "x"},
        {"Content-Length": "5"},
        {"content-type": "x"},
        {"Transfer-Encoding": "chunked"},
        {"webhook-id": "x"},
        {"Webhook-Signature": "x"},
        {"X-Webhook-Attempt": "x"},
        {"X-Signature-256": "x"},
        {"X-A": "1", "x-a": "2"},
        {"X-A": "v" * 4097},
        {f"X-{n}": "1" for n in range(21)},
    ],
)
async def test_c19_custom_headers(sqlite_api: Api, headers: dict[str, str]) -> None:
    body = {"tenant": "acme", "url": URL, "headers": headers}
    problem = await sqlite_api.problem(422, "POST", "/v1/endpoints", json=body)
    assert _members(problem) == ["#/headers"]


@pytest.mark.parametrize("text", [" " + URL, URL + " ", "\t" + URL, URL + "\n", URL + "\u00a0"])
async def test_e13_white_space_around_a_url_is_refused(sqlite_api: Api, text: str) -> None:
    body = {"tenant": "acme", "url": text}
    problem = await sqlite_api.problem(422, "POST", "/v1/endpoints", json=body)
    assert _members(problem) == ["#/url"]


async def test_e15_user_information_in_a_url_is_refused_and_not_repeated(api: Api) -> None:
    body = {"tenant": "acme", "url": "https://u:p%40ss@h.example/"}
    problem = await api.problem(422, "POST", "/v1/endpoints", json=body)
    assert "user information" in problem["detail"]
    assert "p%40ss" not in json.dumps(problem)


async def test_e12_odd_but_legal_hosts_are_accepted(sqlite_api: Api) -> None:
    for url in ("https://foo_bar.example/", "https://xn--bcher-kva.example/ä?q=%2F%27"):
        assert (await sqlite_api.endpoint(url=url))["url"].startswith("https://")


@pytest.mark.parametrize("url", ["http://192.168.7.5/in", "http://127.0.0.1/", "http://[::1]/"])
async def test_e22_an_operator_reads_which_setting_permits_a_private_address(
    api: Api, url: str
) -> None:
    body = {"tenant": "acme", "url": url}
    shown = await api.problem(422, "POST", "/v1/endpoints", json=body)
    assert "SSRF guard" in shown["detail"]
    assert "allow_private_networks" in shown["detail"]
    hidden = await api.problem(422, "POST", "/v1/endpoints", json=body, key="tenant")
    assert [error["detail"] for error in hidden["errors"]] == ["blocked"]
    assert "private" not in json.dumps(hidden)


LISTS = [
    "/v1/audit-log",
    "/v1/event-types",
    "/v1/tenants",
    "/v1/endpoints",
    "/v1/events",
    "/v1/deliveries",
    "/v1/keys",
]


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=201",
        "limit=-1",
        "limit=1_0",
        "limit=%201",
        "limit=1e1",
        "limit=" + "9" * 5000,
        "limit=",
        "cursor=",
        "cursor=zzz",
        "cursor=%00",
        "cursor=%C3%A9",
        "cursor=ZXZ0XzAx",
        "cursor=" + "A" * 2000,
        "colour=red",
    ],
)
@pytest.mark.parametrize("path", LISTS)
async def test_lists_refuse_odd_parameters(sqlite_api: Api, path: str, query: str) -> None:
    problem = await sqlite_api.problem(422, "GET", f"{path}?{query}")
    assert {error["in"] for error in problem["errors"]} == {"query"}
    assert _members(problem) == ["#/" + query.partition("=")[0]]


@pytest.mark.parametrize(
    "query",
    [
        "status=odd",
        "endpoint=odd",
        f"endpoint=evt_{NO_ID}",
        "event=%00",
        "event_type=a%20b",
        "tenant=%00",
        "tenant=",
        "since=yesterday",
        "since=2026-11-29",
        "since=2026-11-29T10:00:00",
        "since=1700000000",
        "until=2026-02-30T10:00:00Z",
        "until=2026-11-29T10:00:00%2B99:00",
    ],
)
async def test_filters_of_deliveries(api: Api, query: str) -> None:
    problem = await api.problem(422, "GET", f"/v1/deliveries?{query}")
    assert _members(problem) == ["#/" + query.partition("=")[0]]


UNKNOWN = [
    ("GET", "/v1/endpoints/{}", "ep"),
    ("PATCH", "/v1/endpoints/{}", "ep"),
    ("DELETE", "/v1/endpoints/{}", "ep"),
    ("POST", "/v1/endpoints/{}/enable", "ep"),
    ("POST", "/v1/endpoints/{}/disable", "ep"),
    ("GET", "/v1/endpoints/{}/secrets", "ep"),
    ("POST", "/v1/endpoints/{}/secrets/rotate", "ep"),
    ("GET", "/v1/events/{}", "evt"),
    ("GET", "/v1/deliveries/{}", "dlv"),
    ("GET", "/v1/deliveries/{}/attempts", "dlv"),
    ("POST", "/v1/deliveries/{}/redeliver", "dlv"),
    ("POST", "/v1/deliveries/{}/cancel", "dlv"),
    ("GET", "/v1/keys/{}", "key"),
    ("DELETE", "/v1/keys/{}", "key"),
]


@pytest.mark.parametrize("given", ["known-form", "nonsense", "nul", "other-kind", "lower"])
@pytest.mark.parametrize(("method", "path", "prefix"), UNKNOWN)
async def test_unknown_ids_are_404(
    sqlite_api: Api, method: str, path: str, prefix: str, given: str
) -> None:
    ids = {
        "known-form": f"{prefix}_{NO_ID}",
        "nonsense": "42",
        "nul": f"{prefix}_%00",
        "other-kind": f"xyz_{NO_ID}",
        "lower": f"{prefix}_{NO_ID.lower()}",
    }
    body = {"json": {"description": "x"}} if method == "PATCH" else {}
    problem = await sqlite_api.problem(404, method, path.format(ids[given]), **body)
    assert problem["type"].endswith(":not-found")


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/nope", "/v1/events/", "/favicon.ico", "/v1//x"])
async def test_unknown_addresses_are_404(sqlite_api: Api, path: str) -> None:
    await sqlite_api.problem(404, "GET", path)


async def test_methods_that_do_not_exist_are_405_and_say_which_do(sqlite_api: Api) -> None:
    answer = await sqlite_api.call("DELETE", "/v1/events")
    assert answer.status_code == 405
    assert problem_in(answer)["type"].endswith(":method-not-allowed")
    assert "POST" in answer.headers["allow"] or "GET" in answer.headers["allow"]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"scope": "root"}, "#/scope"),
        ({"scope": "tenant"}, "#"),
        ({"tenant": "acme"}, "#"),
        ({"name": ""}, "#/name"),
        ({"name": "a\0"}, "#/name"),
        ({"name": "a\nb"}, "#/name"),
        ({"expires_at": "tomorrow"}, "#/expires_at"),
        ({"expires_at": 5}, "#/expires_at"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, "#/expires_at"),
        ({"key": "shk_mine"}, "#/key"),
    ],
)
async def test_members_of_a_key(api: Api, body: dict[str, Any], pointer: str) -> None:
    before = len((await api.ok("GET", "/v1/keys"))["items"])
    problem = await api.problem(
        422, "POST", "/v1/keys", json={"name": "k", "scope": "read", **body}
    )
    assert _members(problem) == [pointer]
    assert len((await api.ok("GET", "/v1/keys"))["items"]) == before


@pytest.mark.parametrize(
    "body",
    [
        {"id": "a\0"},
        {"id": ""},
        {"id": "x", "name": "a\0"},
        {"id": "x", "schedule": "no"},
        {"id": "x", "profiles": ["no"]},
        {"id": "x", "odd": 1},
    ],
)
async def test_members_of_a_tenant(api: Api, body: dict[str, Any]) -> None:
    await api.problem(422, "POST", "/v1/tenants", json=body)
    assert (await api.ok("GET", "/v1/tenants"))["items"] == []


@pytest.mark.parametrize("header", ['"open', "a b", '""', "k" * 300, '"\\x"', 'a"b'])
async def test_an_idempotency_key_header_that_cannot_be_read_is_400(
    sqlite_api: Api, header: str
) -> None:
    request = event()
    request["headers"]["Idempotency-Key"] = header
    await sqlite_api.problem(400, "POST", "/v1/events", **request)


@pytest.mark.parametrize("content_type", ['text/html; charset="utf-8"', "x", "a/b; c"])
async def test_c20_content_types_that_cannot_be_sent_are_refused(
    sqlite_api: Api, content_type: str
) -> None:
    path = "/v1/events/raw?tenant=acme&type=a.b"
    headers = {"content-type": content_type}
    await sqlite_api.problem(422, "POST", path, content=b"x", headers=headers)
