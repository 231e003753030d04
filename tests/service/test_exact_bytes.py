"""What is published over HTTP is what is stored and shown, byte for byte, on both databases."""

from __future__ import annotations

import json

import pytest

from delivery_service.bootstrap import build
from delivery_service.settings import Settings
from delivery_service.store import events
from sender import publish
from tests.service.caller import Api, event, open_api
from wire import RawJson

EXACT = [
    pytest.param('{"z":1,"a":2,"a":3,"n":1.10}', id="a12-order-duplicates-and-digits"),
    pytest.param('{"hello":10002318}', id="b01-no-exponent"),
    pytest.param('{"id":8202522731445525542}', id="b02-more-than-a-double"),
    pytest.param('{"s":"a\\u0000b"}', id="b07-escaped-nul"),
    pytest.param('{"weight":64.0,"x":1E2,"y":0.1e-7,"z":-0}', id="a08-numbers"),
    pytest.param("[1e400, 123456789012345678901234567890]", id="beyond-double"),
    pytest.param('{ "s" : "caf\\u00e9 \\/ é \\u2028 🚀" ,\n\t"t":[ ] }', id="a01-spaces"),
    pytest.param('"\\ud83d\\ude80"', id="escaped-pair"),
    pytest.param("null", id="null"),
    pytest.param('{"data":{"data":[1.50]}}', id="member-of-the-same-name"),
    pytest.param("9" * 4000, id="long-integer"),
]


async def _stored(api: Api, event_id: str) -> bytes:
    row = await api.database.read(events.get, event_id)
    assert row is not None
    return bytes(row["body"])


@pytest.mark.parametrize("data", EXACT)
async def test_a12_b01_b02_b07_data_is_kept_byte_for_byte(api: Api, data: str) -> None:
    done = await api.publish(data=data)
    stored = await _stored(api, done["id"])
    assert stored.endswith(f',"data":{data}}}'.encode())
    shown = await api.call("GET", f"/v1/events/{done['id']}")
    assert shown.content.endswith(b',"body":' + stored + b"}")
    assert shown.json()["size"] == len(stored)


async def test_a12_bytes_survive_a_restart(api: Api) -> None:
    done = await api.publish(data=EXACT[0].values[0])
    before = await _stored(api, done["id"])
    again = build(api.service.settings, api.clock)
    try:
        async with open_api(again, api.clock, api.keys) as reopened:
            assert await _stored(reopened, done["id"]) == before
    finally:
        await again.close()


async def test_members_of_the_request_can_come_in_any_order_and_with_spaces(api: Api) -> None:
    content = b' {\n"data" : [ 1.0 , {"k": 1e1} ] ,"type":"a.b" , "tenant":"acme"} \r\n'
    headers = {"content-type": "application/json; charset=utf-8"}
    done = await api.ok("POST", "/v1/events", content=content, headers=headers)
    assert (await _stored(api, done["id"])).endswith(b',"data":[ 1.0 , {"k": 1e1} ]}')


async def test_deeply_nested_data_is_shown_as_json(api: Api) -> None:
    data = "[" * 100 + "]" * 100
    done = await api.database.write(publish, tenant="acme", type="a.b", data=RawJson(data))
    shown = await api.ok("GET", f"/v1/events/{done.event_id}")
    assert shown["body"]["data"] == json.loads(data)


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        ("[" * 101 + "]" * 101, "100 deep"),
        ("9" * 4301, "4300 digits"),
        ("NaN", "NaN"),
        ("-Infinity", "Infinity"),
        ('"\\ud83d"', "lone surrogate"),
        ('"a\x00b"', "character"),
        ("[1,]", "not JSON"),
    ],
)
async def test_b05_b09_what_is_no_sendable_json_is_refused(api: Api, data: str, hint: str) -> None:
    problem = await api.problem(400, "POST", "/v1/events", **event(data=data))
    assert hint in problem["detail"]
    assert (await api.ok("GET", "/v1/events"))["items"] == []


async def test_a_member_given_twice_is_refused(api: Api) -> None:
    content = b'{"tenant":"acme","type":"a","data":1,"data":2}'
    headers = {"content-type": "application/json"}
    problem = await api.problem(400, "POST", "/v1/events", content=content, headers=headers)
    assert "given twice" in problem["detail"]


def _data_for(size: int) -> str:
    head = '{"id":"evt_01M8MZ1BEN6D43JPGK6XYCNPKH","type":"invoice.paid","timestamp":"'
    envelope = head + '2026-11-29T10:00:00Z","data":""}'
    # Two bytes a character, so that counting characters would let twice the size by.
    rest = size - len(envelope)
    return '"' + "é" * (rest // 2) + "x" * (rest % 2) + '"'


@pytest.mark.parametrize(("excess", "status"), [(-1, 202), (0, 202), (1, 413), (40_000, 413)])
async def test_b12_the_limit_is_in_bytes_of_the_body(api: Api, excess: int, status: int) -> None:
    size = api.service.settings.max_body_bytes + excess
    answer = await api.call("POST", "/v1/events", **event(data=_data_for(size)))
    assert answer.status_code == status, answer.text[:500]
    if status == 202:
        assert len(await _stored(api, answer.json()["id"])) == size


@pytest.mark.parametrize("path", ["/v1/events", "/v1/endpoints", "/v1/events/raw?tenant=a&type=b"])
async def test_b12_a_body_without_a_length_is_cut_off_while_it_is_read(api: Api, path: str) -> None:
    sent = 0

    async def endless():
        nonlocal sent
        while sent < 64 * 2**20:
            sent += 16_384
            yield b" " * 16_384

    headers = {"content-type": "application/json", "transfer-encoding": "chunked"}
    problem = await api.problem(413, "POST", path, content=endless(), headers=headers)
    assert problem["type"].endswith(":too-large")
    assert sent < 1_000_000


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"\xff\x00\xfe", "application/octet-stream"),
        (b"", "text/plain"),
        (b"payload=%7B%22a%22%3A1%7D", "application/x-www-form-urlencoded"),
        (b'{"n":1.10,"n":2}', "application/json"),
        (b'{"half":', "application/json"),
    ],
)
async def test_a09_a_raw_body_is_kept_with_its_content_type(
    api: Api, body: bytes, content_type: str
) -> None:
    path = "/v1/events/raw?tenant=acme&type=invoice.paid"
    done = await api.ok("POST", path, content=body, headers={"content-type": content_type})
    assert await _stored(api, done["id"]) == body
    shown = await api.ok("GET", f"/v1/events/{done['id']}")
    assert shown["content_type"] == content_type
    assert (shown["body"] is None) == (shown["body_base64"] is not None)


def test_settings_default_is_256_kib() -> None:
    assert Settings(database_url="sqlite:///x").max_body_bytes == 262_144
