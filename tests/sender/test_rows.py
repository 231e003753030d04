"""Rows as parameters: what goes in comes out, on both databases and both drivers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import (
    Boolean,
    Connection,
    Engine,
    Float,
    Integer,
    LargeBinary,
    Text,
    select,
)
from sqlalchemy.ext.asyncio import create_async_engine

from sender.rows import Columns, parameters, relation
from sender.types import UtcDateTime
from tests.support.postgres import Postgres
from tests.support.tables import sync_engine

PLAIN: Columns = (("text", Text()), ("whole", Integer()), ("real", Float()))
ALL: Columns = (*PLAIN, ("flag", Boolean()), ("at", UtcDateTime()), ("raw", LargeBinary()))

# Everything that means something in the text of an array, or nearly does.
ODD = [
    "",
    "NULL",
    "null",
    "{}",
    '"',
    "\x1f",
    "\\",
    '\\"',
    "a,b",
    "{a,b}",
    " a ",
    "\n\t",
    "ä€😀",
    "\\x41",
    "'",
]

texts = st.none() | st.sampled_from(ODD) | st.text(st.characters(exclude_categories=["Cs"]))
texts = texts.map(lambda text: text and text.replace("\0", ""))
whole = st.none() | st.integers(-(2**31), 2**31 - 1)
real = st.none() | st.floats(allow_nan=False, allow_infinity=False)
plain_rows = st.lists(
    st.fixed_dictionaries({"text": texts, "whole": whole, "real": real}), min_size=1, max_size=5
)
zones = st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30))])
moments = st.datetimes(datetime(1900, 1, 1), timezones=zones)  # noqa: DTZ001 hypothesis' form
all_rows = st.lists(
    st.fixed_dictionaries(
        {
            "text": texts,
            "whole": whole,
            "real": real,
            "flag": st.none() | st.booleans(),
            "at": st.none() | moments,
            "raw": st.none() | st.binary(max_size=20),
        }
    ),
    min_size=1,
    max_size=5,
)

Rows = Sequence[Mapping[str, Any]]


def returned(connection: Connection, columns: Columns, rows: Rows) -> list[dict[str, Any]]:
    given = relation(connection.dialect.name, "given", columns)
    found = connection.execute(select(given), parameters(connection, columns, rows))
    return [row._asdict() for row in found]


@pytest.fixture(scope="module")
def postgresql(postgres: Postgres) -> str:
    return postgres.url(postgres.create_database())


def test_plain_values_come_back(engine: Engine) -> None:
    @settings(deadline=None)
    @given(plain_rows)
    def check(rows: Rows) -> None:
        with engine.connect() as connection:
            assert returned(connection, PLAIN, rows) == rows

    check()


def test_every_type_comes_back_through_psycopg(postgresql: str) -> None:
    engine = sync_engine(postgresql, poolclass=None)

    @settings(deadline=None)
    @given(all_rows)
    def check(rows: Rows) -> None:
        with engine.connect() as connection:
            assert returned(connection, ALL, rows) == rows

    check()
    engine.dispose()


def test_every_type_comes_back_through_asyncpg(postgresql: str) -> None:
    with asyncio.Runner() as runner:
        engine = create_async_engine(postgresql)
        connection = runner.run(engine.connect().start())

        @settings(deadline=None)
        @given(all_rows)
        def check(rows: Rows) -> None:
            assert runner.run(connection.run_sync(returned, ALL, rows)) == rows

        check()
        runner.run(connection.close())
        runner.run(engine.dispose())


def test_a_moment_without_a_time_zone_is_refused(postgresql: str) -> None:
    columns: Columns = (("at", UtcDateTime()),)
    with sync_engine(postgresql).connect() as connection, pytest.raises(ValueError, match="zone"):
        parameters(connection, columns, [{"at": datetime(2026, 1, 1)}])  # noqa: DTZ001 on purpose
