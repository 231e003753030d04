"""Beside the platform's own tables, and in its time."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy import Engine, create_engine, inspect, make_url, select, text
from sqlalchemy.orm import Session

from sender import publish
from sender.tables import attempts, endpoints, events, is_surehook, metadata
from sender.types import later, moment
from tests.sender.conftest import AddEndpoint
from tests.support.processes import ROOT
from tests.support.tables import SYNC_DRIVERS, statements, stored
from wire.envelope import parse_timestamp

NOON = datetime(2026, 11, 29, 12, 0, 0, 250_000, tzinfo=UTC)


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
        "import sys; from sqlalchemy import create_engine\n"
        "from sender import publish; from sender.sqlite import configure_sqlite\n"
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
