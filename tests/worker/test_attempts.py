"""What an endpoint gets, attempt by attempt, and when."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from tests.support.engine import START, Engined
from tests.support.ports import free_port
from tests.support.receiver import HANG, Answer, Receiver
from tests.worker.conftest import MakeEngined
from wire import RawJson, generate_secret, public_key, verify

FAIL = Answer(500)


async def walk(engined: Engined, minutes: list[float]) -> None:
    """Let a fresh worker look at each of these minutes after the start, and a moment before."""
    for minute in minutes:
        due = START + timedelta(minutes=minute)
        if minute:
            engined.clock.moment = due - timedelta(milliseconds=2)
            await engined.work()
        engined.clock.moment = due
        await engined.work()


async def test_d01_attempts_at_0_1_6_36_156_and_516_minutes(
    engined: Engined, receiver: Receiver
) -> None:
    receiver.script("/", FAIL)
    secret = generate_secret()
    engined.endpoint(receiver.url("/"), secret=secret)
    (delivery_id,) = engined.publish({"n": 1.0}).delivery_ids
    minutes = [0, 1, 6, 36, 156, 516]
    await walk(engined, [*minutes, 517, 5000])

    got = receiver.requests
    assert len(got) == 6
    stored = engined.attempts(delivery_id)
    started = [(a["started_at"] - START) / timedelta(minutes=1) for a in stored]
    assert started == minutes
    assert [a["number"] for a in stored] == [1, 2, 3, 4, 5, 6]
    assert {(a["kind"], a["status_code"], a["late"]) for a in stored} == {("status", 500, False)}
    assert engined.status(delivery_id) == ("dead", "schedule_used_up", 6)
    assert engined.queued() == []
    # The same id and bytes each time, a fresh timestamp and signature.
    assert {r.header("webhook-id") for r in got} == {delivery_id}
    assert [r.header("X-Webhook-Attempt") for r in got] == list("123456")
    assert len({r.body for r in got}) == 1
    for minute, request in zip(minutes, got, strict=True):
        now = START + timedelta(minutes=minute)
        assert request.header("webhook-timestamp") == str(int(now.timestamp()))
        assert verify(secret, dict(request.headers), request.body, now=now).id == delivery_id
    assert len({r.header("webhook-signature") for r in got}) == 6


@pytest.mark.parametrize(
    ("schedule", "seconds"), [("[]", [0]), ("[0, 0, 5]", [0, 0, 0, 5]), ("0,0,5s", [0, 0, 0, 5])]
)
async def test_d02_short_schedules(
    engined: Engined, receiver: Receiver, schedule: str, seconds: list[int]
) -> None:
    receiver.script("/", FAIL)
    engined.endpoint(receiver.url("/"), schedule=schedule)
    (delivery_id,) = engined.publish().delivery_ids
    await walk(engined, [0, 5 / 60, 100])
    stored = engined.attempts(delivery_id)
    assert [(a["started_at"] - START).total_seconds() for a in stored] == seconds
    assert engined.status(delivery_id) == ("dead", "schedule_used_up", len(seconds))


BODIES: list[dict[str, Any]] = [
    {"data": {"hello": 10002318, "id": 8202522731445525542, "w": 64.0, "f": 1e-08}},
    {"data": {"k": "a=b&c<d>/", "e": "🚀é", "tel": "\u2028\u2028555", "nul": "a\x00b"}},
    {"data": RawJson('{ "z":1,"a":2,"a":3, "n":1.10,"e":1E2,"s":"\\u003d\\u2028\\/é" }')},
    {"data": {"deep": [[{"a": [None, True, {}]}]], "empty": ""}},
    {"body": b"\x00\xff\xfe", "content_type": "application/octet-stream"},
    {"body": b"", "content_type": "text/plain"},
    {"body": b"payload=%7B%22a%22%3A1%7D", "content_type": "text/plain;charset=utf-8"},
]


@pytest.mark.parametrize("event", BODIES, ids=range(len(BODIES)))
async def test_a02_a03_a04_a08_a12_b01_b02_b07_b10_stored_signed_and_sent_bytes_are_one(
    make_engined: MakeEngined, receiver: Receiver, event: dict[str, Any]
) -> None:
    receiver.script("/", FAIL, HANG, Answer())
    secret = generate_secret()
    first = make_engined(attempt_timeout=timedelta(milliseconds=300))
    first.endpoint(receiver.url("/"), secret=secret, schedule="1m,1m")
    published = first.publish(**event)
    await first.work()
    # Two restarts: other engines on the same database.
    for minute in (1, 2):
        later = make_engined(attempt_timeout=timedelta(milliseconds=300))
        later.clock.moment = START + timedelta(minutes=minute)
        await later.work()

    with first.begin() as connection:
        from delivery_service.store import events

        stored = events.get(connection, published.event_id)
    assert stored is not None
    got = receiver.requests
    assert len(got) == 3
    assert {r.body for r in got} == {stored["body"]}
    if "body" in event:
        assert stored["body"] == event["body"]
    for request in got:
        now = START + timedelta(hours=1)
        assert verify(
            secret, dict(request.headers), request.body, now=now, tolerance=timedelta(days=1)
        )
        assert request.method == "POST"
        assert request.header_list("content-length") == [str(len(request.body))]
        assert request.header("transfer-encoding") is None
    assert later.status(published.delivery_ids[0]) == ("delivered", None, 3)


async def test_a14_a15_c17_g06_every_attempt_is_signed_afresh_under_one_id(
    engined: Engined, receiver: Receiver
) -> None:
    receiver.script("/", FAIL, Answer())
    secret = generate_secret()
    engined.endpoint(receiver.url("/"), secret=secret, schedule="10m")
    (delivery_id,) = engined.publish().delivery_ids
    await walk(engined, [0, 10])
    one, two = receiver.requests
    assert one.body == two.body
    for name in ("webhook-id", "X-Webhook-Event-Id", "X-Webhook-Delivery-Id"):
        assert one.header(name) == two.header(name)
    assert one.header("webhook-signature") != two.header("webhook-signature")
    # Within the receivers' tolerance each time, although the attempts are 10 minutes apart.
    verify(secret, dict(one.headers), one.body, now=START)
    verify(secret, dict(two.headers), two.body, now=START + timedelta(minutes=10))
    assert engined.status(delivery_id) == ("delivered", None, 2)


async def test_c20_the_headers_of_the_default_profile(engined: Engined, receiver: Receiver) -> None:
    engined.endpoint(receiver.url("/hook?a=%2F%27b"))
    published = engined.publish(type="invoice.paid")
    await engined.work()
    (request,) = receiver.requests
    assert request.target == "/hook?a=%2F%27b"
    assert request.header_list("content-type") == ["application/json"]
    assert request.header("accept-encoding") == "identity"
    assert (request.header("user-agent") or "").startswith("surehook/")
    assert request.header("X-Webhook-Event-Id") == published.event_id
    assert request.header("X-Webhook-Event-Type") == "invoice.paid"
    assert request.header("X-Webhook-Delivery-Id") == published.delivery_ids[0]
    assert json.loads(request.body)["id"] == published.event_id
    (attempt,) = engined.attempts(published.delivery_ids[0])
    kept = json.loads(attempt["request_headers"])
    assert kept["webhook-signature"] == "v1,***"
    assert attempt["may_have_arrived"]


async def test_c04_both_secrets_sign_during_an_overlap(
    engined: Engined, receiver: Receiver
) -> None:
    from delivery_service.store import endpoints

    old, new = generate_secret(), generate_secret("whsk")
    endpoint = engined.endpoint(receiver.url("/"), secret=old)
    worker = engined.worker()
    engined.publish()
    await worker.run_until_idle()
    with engined.begin() as connection:
        sealed = engined.service.sealer.seal(new)
        endpoints.rotate_secret(connection, endpoint, sealed, timedelta(hours=1), engined.now)
    for minutes in (0, 59, 1):
        engined.advance(minutes=minutes)
        engined.publish()
        await worker.run_until_idle()
    await worker._sending.transport.close()
    kinds = [
        sorted(s.partition(",")[0] for s in (r.header("webhook-signature") or "").split())
        for r in receiver.requests
    ]
    assert kinds == [["v1"], ["v1", "v1a"], ["v1", "v1a"], ["v1a"]]
    last = receiver.requests[-1]
    verify(public_key(new), dict(last.headers), last.body, now=engined.now)


async def test_a_tenants_schedule_and_profiles_apply(engined: Engined, receiver: Receiver) -> None:
    from sender.tables import tenants

    with engined.begin() as connection:
        connection.execute(
            tenants.insert().values(
                id="acme", schedule="7m", profiles=["github"], created_at=START, updated_at=START
            )
        )
    receiver.script("/", FAIL)
    engined.endpoint(receiver.url("/"))
    engined.endpoint(receiver.url("/own"), schedule="3m", profiles=["standard"])
    receiver.script("/own", FAIL)
    engined.publish()
    await walk(engined, [0, 3, 7])
    assert len(receiver.received("/")) == len(receiver.received("/own")) == 2
    assert receiver.received("/")[0].header("X-Hub-Signature-256")
    assert receiver.received("/own")[0].header("webhook-signature")
    assert receiver.received("/own")[0].header("X-Hub-Signature-256") is None


@pytest.mark.parametrize("status", [200, 201, 202, 204, 206, 299])
async def test_d05_every_2xx_delivers(engined: Engined, receiver: Receiver, status: int) -> None:
    receiver.script("/", Answer(status))
    engined.endpoint(receiver.url("/"))
    (delivery_id,) = engined.publish().delivery_ids
    await engined.work()
    assert engined.status(delivery_id) == ("delivered", None, 1)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_d13_redirects_are_not_followed(
    engined: Engined, receiver: Receiver, status: int
) -> None:
    receiver.script("/", Answer(status, headers=(("Location", receiver.url("/other")),)))
    engined.endpoint(receiver.url("/"))
    (delivery_id,) = engined.publish().delivery_ids
    await engined.work()
    assert receiver.received("/other") == []
    assert engined.status(delivery_id) == ("pending", None, 1)
    assert engined.attempts(delivery_id)[0]["kind"] == "redirect"


@pytest.mark.parametrize("status", [429, 503])
async def test_d06_d09_retry_after(engined: Engined, receiver: Receiver, status: int) -> None:
    receiver.script(
        "/",
        Answer(status, headers=(("Retry-After", "180"),)),
        Answer(status, headers=(("Retry-After", "-1"),)),
        Answer(),
    )
    engined.endpoint(receiver.url("/"), schedule="1m,1m")
    (delivery_id,) = engined.publish().delivery_ids
    await walk(engined, [0, 1, 3, 4])
    minutes = [
        (a["started_at"] - START) / timedelta(minutes=1) for a in engined.attempts(delivery_id)
    ]
    assert minutes == [0, 3, 4]
    assert engined.status(delivery_id) == ("delivered", None, 3)


async def test_d10_d11_retry_after_is_capped(engined: Engined, receiver: Receiver) -> None:
    receiver.script("/", Answer(503, headers=(("Retry-After", "9999999999"),)), Answer())
    engined.endpoint(receiver.url("/"), schedule="1m")
    (delivery_id,) = engined.publish().delivery_ids
    await walk(engined, [0, 59, 60])
    assert len(receiver.requests) == 2
    assert engined.status(delivery_id) == ("delivered", None, 2)


async def test_d17_only_the_failed_delivery_is_repeated(
    engined: Engined, receiver: Receiver
) -> None:
    receiver.script("/b", FAIL, Answer())
    for path in ("/a", "/b", "/c"):
        engined.endpoint(receiver.url(path))
    published = engined.publish()
    await walk(engined, [0, 1, 6])
    assert [len(receiver.received(path)) for path in ("/a", "/b", "/c")] == [1, 2, 1]
    ids = {r.header("webhook-id") for r in receiver.requests}
    assert ids == set(published.delivery_ids)


async def test_e09_e10_odd_answers_are_stored(engined: Engined, receiver: Receiver) -> None:
    receiver.script("/", Answer(body=b"\xff\xfe\x00 ok"))
    receiver.script("/b", Answer(raw=b"\x00\xff nonsense\r\n\r\n"))
    engined.endpoint(receiver.url("/"))
    engined.endpoint(receiver.url("/b"))
    engined.endpoint(f"http://127.0.0.1:{free_port()}/", description="nobody listens")
    published = engined.publish()
    await engined.work()
    stored = [engined.attempts(id_)[0] for id_ in published.delivery_ids]
    assert sorted(a["kind"] for a in stored) == ["connect", "delivered", "protocol"]
    (good,) = [a for a in stored if a["kind"] == "delivered"]
    assert good["response_body"] == b"\xff\xfe\x00 ok"
    assert engined.queued()[0]["lease_token"] is None


async def test_e08_an_endpoint_that_never_answers_times_out(
    make_engined: MakeEngined, receiver: Receiver
) -> None:
    engined = make_engined(attempt_timeout=timedelta(milliseconds=200))
    receiver.script("/", HANG)
    engined.endpoint(receiver.url("/"))
    (delivery_id,) = engined.publish().delivery_ids
    await engined.work()
    (attempt,) = engined.attempts(delivery_id)
    assert attempt["kind"] == "timeout"
    assert attempt["may_have_arrived"]


async def test_g09_the_time_of_the_event_travels_in_the_body(
    engined: Engined, receiver: Receiver
) -> None:
    receiver.script("/", FAIL, Answer())
    engined.endpoint(receiver.url("/"))
    engined.publish("first")
    await engined.work()
    engined.advance(seconds=1)
    engined.publish("second")
    await walk(engined, [1 / 60, 1])
    bodies = [json.loads(r.body) for r in receiver.requests]
    assert [b["data"] for b in bodies] == ["first", "second", "first"]
    assert bodies[2]["timestamp"] < bodies[1]["timestamp"]
    assert bodies[2]["id"] < bodies[1]["id"]
