"""Publishing inside the caller's transaction."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from sender import NewEvent, publish, publish_async, publish_many
from sender.sqlite import configure_sqlite
from sender.tables import deliveries, endpoints, events, queue
from tests.sender.conftest import AddEndpoint
from tests.support.tables import statements, stored
from wire import RawJson
from wire.envelope import parse_timestamp
from wire.ids import id_time

NOON = datetime(2026, 11, 29, 12, 0, 0, 250_000, tzinfo=UTC)


def test_publish_with_a_session(engine: Engine, add_endpoint: AddEndpoint) -> None:
    endpoint = add_endpoint()
    with Session(engine) as session, session.begin():
        published = publish(session, tenant="acme", type="invoice.paid", data={"id": 7, "é": 1.0})

    with engine.begin() as connection:
        event = connection.execute(select(events)).one()
        delivery = connection.execute(select(deliveries)).one()
        row = connection.execute(select(queue)).one()
    assert (event.id, (delivery.id,)) == (published.event_id, published.delivery_ids)
    assert not published.duplicate
    head = f'{{"id":"{event.id}","type":"invoice.paid","timestamp":"'.encode()
    assert event.body.startswith(head)
    assert event.body.endswith(b',"data":{"id":7,"\xc3\xa9":1.0}}')
    assert parse_timestamp(json.loads(event.body)["timestamp"]) == event.created_at
    assert event.created_at == id_time(event.id)
    assert event.content_type == "application/json"
    assert (delivery.event_id, delivery.endpoint_id) == (event.id, endpoint)
    assert (delivery.tenant_id, delivery.event_type) == ("acme", "invoice.paid")
    assert (delivery.status, delivery.reason, delivery.attempts) == ("pending", None, 0)
    assert (row.delivery_id, row.endpoint_id, row.lane, row.claims) == (delivery.id, endpoint, 0, 0)
    assert row.lease_token is None


def test_publish_with_a_connection(engine: Engine, add_endpoint: AddEndpoint) -> None:
    add_endpoint()
    with engine.begin() as connection:
        publish(connection, tenant="acme", type="a.b", data=None)
        assert stored(connection) == (1, 1, 1)


async def test_publish_with_async_session_and_connection(tables_url: str) -> None:
    engine = create_async_engine(tables_url)
    configure_sqlite(engine)
    async with AsyncSession(engine) as session, session.begin():
        first = await publish_async(session, tenant="acme", type="a.b", data=[1])
    async with engine.begin() as connection:
        second = await publish_async(connection, tenant="acme", type="a.b", data=[2])
        batch = await connection.run_sync(
            publish_many, [NewEvent(tenant="acme", type="a.b", data=[3], idempotency_key="k")]
        )
        bodies = (await connection.scalars(select(events.c.body).order_by(events.c.id))).all()
    await engine.dispose()
    assert [b.rpartition(b'"data":')[2] for b in bodies] == [b"[1]}", b"[2]}", b"[3]}"]
    assert first.event_id < second.event_id < batch[0].event_id


def test_f13_rollback_leaves_nothing(engine: Engine, add_endpoint: AddEndpoint) -> None:
    add_endpoint()
    with Session(engine) as session:
        publish(session, tenant="acme", type="a.b", data=1)
        session.rollback()
    with engine.begin() as connection:
        assert stored(connection) == (0, 0, 0)


def test_f12_nothing_is_seen_before_the_commit(engine: Engine, add_endpoint: AddEndpoint) -> None:
    add_endpoint()
    with engine.begin() as writer:
        publish(writer, tenant="acme", type="a.b", data=1)
        with engine.connect().execution_options(surehook_read_only=True) as reader:
            assert stored(reader) == (0, 0, 0)


def test_matching_decides_who_gets_a_delivery(engine: Engine, add_endpoint: AddEndpoint) -> None:
    wanted = {
        add_endpoint(event_types=None),
        add_endpoint(event_types=[]),
        add_endpoint(event_types=["*"]),
        add_endpoint(event_types=["x", "invoice.*"]),
        add_endpoint(event_types=["invoice.paid"]),
    }
    add_endpoint(event_types=["invoice"])
    add_endpoint(event_types=["invoice.paid.late"])
    add_endpoint(tenant_id="other")
    with engine.begin() as connection:
        published = publish(connection, tenant="acme", type="invoice.paid", data=1)
        found = connection.execute(select(deliveries.c.id, deliveries.c.endpoint_id)).all()
    assert {row.endpoint_id for row in found} == wanted
    assert published.delivery_ids == tuple(sorted(row.id for row in found))


def test_f05_a_disabled_endpoint_gets_a_skipped_delivery(
    engine: Engine, add_endpoint: AddEndpoint
) -> None:
    add_endpoint(status="disabled", disabled_reason="operator")
    add_endpoint(status="disabled", deleted_at=NOON)
    add_endpoint(deleted_at=NOON)
    with engine.begin() as connection:
        published = publish(connection, tenant="acme", type="a.b", data=1)
        delivery = connection.execute(select(deliveries)).one()
        assert stored(connection) == (1, 1, 0)
    assert published.delivery_ids == (delivery.id,)
    assert (delivery.status, delivery.reason) == ("skipped", "endpoint_disabled")
    assert delivery.undelivered
    assert delivery.ended_at is not None


def test_an_event_without_endpoints_is_kept(engine: Engine) -> None:
    with engine.begin() as connection:
        assert publish(connection, tenant="acme", type="a.b", data=1).delivery_ids == ()
        assert stored(connection) == (1, 0, 0)


def test_an_endpoint_of_the_same_transaction_gets_the_event(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(
            endpoints.insert().values(
                id="ep_1", tenant_id="acme", url="x", created_at=NOON, updated_at=NOON
            )
        )
        assert len(publish(connection, tenant="acme", type="a.b", data=1).delivery_ids) == 1


def test_raw_body(engine: Engine) -> None:
    body = b"<a>\xff\x00</a>"
    with engine.begin() as connection:
        publish(connection, tenant="acme", type="a.b", body=body, content_type="application/xml")
        publish(connection, tenant="acme", type="a.b", body=b"", content_type="text/plain")
        found = connection.execute(
            select(events.c.body, events.c.content_type).order_by(events.c.id)
        ).all()
    assert found == [(body, "application/xml"), (b"", "text/plain")]


@pytest.mark.parametrize(
    "content",
    [
        '{"hello":10002318,"id":8202522731445525542}',
        '{"weight":64.0,"n":1.10,"e":1E2,"s":0.1e-7}',
        '{ "z":1, "a":2,\n"a":3 }',
        '{"s":"caf\\u00e9 \\u003d / <&","raw":"é\u2028🚀"}',
        '{"s":"a\\u0000b"}',
    ],
)
def test_b01_b02_b07_a08_a12_raw_json_is_stored_byte_for_byte(engine: Engine, content: str) -> None:
    with engine.begin() as connection:
        publish(connection, tenant="acme", type="a.b", data=RawJson(content))
        body = connection.scalar(select(events.c.body))
    assert body.endswith(b',"data":' + content.encode() + b"}")


def test_a13_key_order_is_kept(engine: Engine) -> None:
    with engine.begin() as connection:
        publish(connection, tenant="acme", type="a.b", data={"b": 1, "a": 2})
        publish(connection, tenant="acme", type="a.b", data={"a": 2, "b": 1})
        bodies = connection.scalars(select(events.c.body).order_by(events.c.id)).all()
    assert bodies[0].endswith(b'{"b":1,"a":2}}')
    assert bodies[1].endswith(b'{"a":2,"b":1}}')


def test_b02_b07_values_are_exact(engine: Engine) -> None:
    data = {"id": 8202522731445525542, "n": 10002318, "f": 64.0, "nul": "a\x00b", "e": "😱"}
    with engine.begin() as connection:
        publish(connection, tenant="acme", type="a.b", data=data)
        body = connection.scalar(select(events.c.body))
    assert json.loads(body)["data"] == data
    assert b"8202522731445525542" in body
    assert b"64.0" in body


def test_the_number_of_statements_does_not_grow(engine: Engine, add_endpoint: AddEndpoint) -> None:
    for _ in range(3):
        add_endpoint()
    add_endpoint(status="disabled")
    counts = []
    for size in (1, 400):
        batch = [
            NewEvent(
                tenant="acme",
                type="a.b",
                data=number,
                idempotency_key=f"{size}/{number}" if number % 2 else None,
            )
            for number in range(size)
        ]
        for _ in ("first", "again"):
            with engine.begin() as connection, statements(engine) as seen:
                done = publish_many(connection, batch)
            counts.append(len(seen))
        assert [p.duplicate for p in done] == [bool(e.idempotency_key) for e in batch]
    assert max(counts) <= 8


def test_a_batch_is_all_or_nothing_and_in_order(engine: Engine, add_endpoint: AddEndpoint) -> None:
    add_endpoint()
    batch = [NewEvent(tenant="acme", type="a.b", data=number) for number in range(5)]
    with engine.begin() as connection:
        done = publish_many(connection, batch)
        bodies = connection.scalars(select(events.c.body).order_by(events.c.id)).all()
        assert publish_many(connection, []) == []
    assert [p.event_id for p in done] == sorted(p.event_id for p in done)
    assert [json.loads(body)["data"] for body in bodies] == list(range(5))
    ids = [id_ for p in done for id_ in p.delivery_ids]
    assert ids == sorted(set(ids))
    assert len(ids) == 5


def test_ids_sort_by_time_in_the_database(engine: Engine) -> None:
    with engine.begin() as connection:
        first = publish(connection, tenant="A", type="a.b", data=1, now=NOON)
        batch = [
            publish(
                connection, tenant="b", type="a.b", data=n, now=NOON + timedelta(milliseconds=n)
            )
            for n in (3, 1, 2, 0)
        ]
        ids = connection.scalars(select(events.c.id).order_by(events.c.id)).all()
    in_time = [first, batch[3], batch[1], batch[2], batch[0]]
    assert ids == [published.event_id for published in in_time]
