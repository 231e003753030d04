"""Publishing inside the caller's transaction."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy import Engine, create_engine, inspect, make_url, select, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from sender import NewEvent, publish, publish_async, publish_many
from sender.sqlite import configure_sqlite
from sender.tables import (
    attempts,
    deliveries,
    endpoints,
    events,
    is_surehook,
    metadata,
    queue,
)
from sender.types import later, moment
from tests.sender.conftest import AddEndpoint
from tests.support.processes import ROOT
from tests.support.tables import SYNC_DRIVERS, statements, stored
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


def test_f30_utc_in_and_utc_out(engine: Engine) -> None:
    given = datetime(2026, 1, 1, 13, 30, 45, 123_456, tzinfo=timezone(-timedelta(hours=8)))
    with engine.begin() as connection:
        connection.execute(
            endpoints.insert().values(
                id="ep_1", tenant_id="acme", url="x", created_at=given, updated_at=given
            )
        )
        utc = given.astimezone(UTC)
        around = endpoints.c.created_at.between(given - timedelta(seconds=1), utc)
        found = connection.scalar(select(endpoints.c.created_at).where(around))
        outside = select(endpoints.c.id).where(endpoints.c.created_at > given)
        assert connection.scalar(outside) is None
    assert found == given
    assert found.utcoffset() == timedelta()


@pytest.mark.parametrize("zone", ["America/Los_Angeles", "Asia/Kolkata"])
def test_f30_f36_the_zone_of_the_host_does_not_matter(tables_url: str, zone: str) -> None:
    url = make_url(tables_url)
    url = url.set(drivername=SYNC_DRIVERS[url.get_backend_name()])
    script = (
        "import sys; from sqlalchemy import create_engine; from sender import publish\n"
        "from sender.sqlite import configure_sqlite\n"
        "engine = create_engine(sys.argv[1]); configure_sqlite(engine)\n"
        "with engine.begin() as c: publish(c, tenant='acme', type='a.b', data=1)\n"
    )
    before = datetime.now(UTC) - timedelta(seconds=1)
    command = [sys.executable, "-c", script, url.render_as_string(hide_password=False)]
    subprocess.run(command, check=True, cwd=ROOT, env={"TZ": zone, "PYTHONPATH": str(ROOT)})
    engine = create_engine(url)
    with engine.begin() as connection:
        row = connection.execute(select(events.c.created_at, events.c.body)).one()
        clock = connection.scalar(select(moment(None)))
    engine.dispose()
    after = datetime.now(UTC) + timedelta(seconds=1)
    assert before <= row.created_at <= clock <= after
    assert parse_timestamp(json.loads(row.body)["timestamp"]) == row.created_at


def test_times_are_computed_alike_on_both_databases(engine: Engine) -> None:
    with engine.begin() as connection:
        expected = NOON + timedelta(days=400, milliseconds=1500)
        assert connection.scalar(select(later(400 * 86400 + 1.5, NOON))) == expected
        assert connection.scalar(select(later(-90.25, NOON))) == NOON - timedelta(seconds=90.25)
        assert connection.scalar(select(moment(NOON))) == NOON
        assert connection.scalar(select(later(3600) > moment(None)))


def test_naive_times_are_refused(engine: Engine) -> None:
    with (
        engine.begin() as connection,
        pytest.raises(Exception, match="time zone"),
    ):
        publish(connection, tenant="acme", type="a.b", data=1, now=NOON.replace(tzinfo=None))


def test_everything_in_the_database_is_named_surehook(engine: Engine) -> None:
    inspector = inspect(engine)
    names = set(inspector.get_table_names())
    assert names == {table.name for table in metadata.sorted_tables}
    for table in list(names):
        for index in inspector.get_indexes(table):
            names.add(index["name"] or "")
        names.update(c["name"] or "" for c in inspector.get_unique_constraints(table))
        names.add(inspector.get_pk_constraint(table)["name"] or "")
        assert inspector.get_foreign_keys(table) == []
    assert all("surehook_" in name for name in names)
    assert all(is_surehook(name) for name in names)
    assert not is_surehook("invoices")
    assert not is_surehook("my_surehook_notes")
    assert not is_surehook(None)


def test_alembic_autogenerate_leaves_the_tables_alone(engine: Engine) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext
    from sqlalchemy import Column, Integer, MetaData, Table

    platform = MetaData()
    Table("invoices", platform, Column("id", Integer, primary_key=True))
    with engine.begin() as connection:
        context = MigrationContext.configure(
            connection, opts={"include_name": lambda name, kind, parents: not is_surehook(name)}
        )
        changes = compare_metadata(context, platform)
    assert [change[0] for change in changes] == ["add_table"]


def test_pgbouncer_no_statement_needs_session_state(
    engine: Engine, add_endpoint: AddEndpoint
) -> None:
    add_endpoint()
    with statements(engine) as seen:
        for _ in range(2):
            with engine.begin() as connection:
                publish(connection, tenant="acme", type="a.b", data=1, idempotency_key="k")
    assert seen
    text_ = "\n".join(seen).upper()
    for word in ("SET ", "TEMP", "ADVISORY", "LISTEN", "NOTIFY", "PREPARE", "DECLARE"):
        assert not any(line.startswith(word) for line in text_.splitlines()), word
    assert "ADVISORY" not in text_


def test_published_rows_are_only_ours(engine: Engine, add_endpoint: AddEndpoint) -> None:
    """Beside the platform's own tables, in its own transaction."""
    add_endpoint()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE invoices (id integer PRIMARY KEY)"))
    with Session(engine) as session, session.begin():
        session.execute(text("INSERT INTO invoices VALUES (1)"))
        publish(session, tenant="acme", type="invoice.paid", data={"id": 1})
    with Session(engine) as session:
        session.execute(text("INSERT INTO invoices VALUES (2)"))
        publish(session, tenant="acme", type="invoice.paid", data={"id": 2})
        session.rollback()
    with engine.begin() as connection:
        assert connection.scalar(text("SELECT count(*) FROM invoices")) == 1
        assert stored(connection) == (1, 1, 1)
        assert connection.scalar(select(attempts.c.id)) is None
