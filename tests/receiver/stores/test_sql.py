"""Receipts in SQL: inside the caller's transaction, several drivers, several processes."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from receiver import sqlclaim
from receiver.gate import Claimed, Done, Gate, GateError, InProgress, Mismatch, Parked
from receiver.memory import MemoryStore
from receiver.sql import SqlStore, metadata
from receiver.testing import FakeClock
from tests.receiver.stores.kinds import SYNC_SQL, open_store, statements_of, sync_engine
from tests.support.postgres import Postgres

on_every_database = pytest.mark.parametrize("kind", SYNC_SQL)
EFFECT = text("INSERT INTO effects (n) VALUES (1)")


@pytest.fixture
def engine(store_url: str) -> Any:
    made = sync_engine(store_url)
    SqlStore(made).create_table().run()
    with made.begin() as connection:
        connection.execute(text("CREATE TABLE effects (n INTEGER)"))
    yield made
    made.dispose()


def effects(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM effects")).scalar_one())


@on_every_database
def test_first_delivery_in_the_callers_transaction_is_one_insert(engine: Engine) -> None:
    gate = Gate(SqlStore(engine))
    with engine.begin() as connection:
        seen = statements_of(engine)
        joined = gate.within(connection)
        claim = joined.claim("a", "aa").run()
        assert isinstance(claim, Claimed)
        connection.execute(EFFECT)
        assert joined.complete("a", claim.token).run()
        assert joined.extend("a", claim.token).run()
    assert [statement.split()[0] for statement in seen] == ["INSERT", "INSERT"]
    assert gate.claim("a", "aa").run() == Done(None)
    with engine.begin() as connection:
        assert gate.within(connection).claim("a", "aa").run() == Done(None)
        assert gate.within(connection).claim("a", "bb").run() == Mismatch("aa", done=True)
    assert effects(engine) == 1


@on_every_database
def test_rolled_back_effect_takes_its_receipt_with_it(engine: Engine) -> None:
    gate = Gate(SqlStore(engine), max_failures=2)
    for failures in (1, 2):
        with engine.connect() as connection:
            joined = gate.within(connection)
            claim = joined.claim("a").run()
            assert claim == Claimed(claim.token, failures)  # type: ignore[union-attr]
            connection.execute(EFFECT)
            with pytest.raises(GateError, match="roll the transaction back"):
                joined.release("a", claim.token, "boom").run()
            connection.rollback()
            assert joined.release("a", claim.token, f"boom {failures}").run()
    assert effects(engine) == 0
    assert gate.claim("a").run() == Parked(2, "boom 2")
    with engine.begin() as connection:
        assert gate.within(connection).claim("a").run() == Parked(2, "boom 2")
    assert [letter.key for letter in gate.dead_letters().run()] == ["a"]
    assert gate.revive("a").run()
    with engine.begin() as connection:
        assert isinstance(gate.within(connection).claim("a").run(), Claimed)


@on_every_database
def test_response_in_the_callers_transaction(engine: Engine) -> None:
    gate = Gate(SqlStore(engine))
    with Session(engine) as session, session.begin():
        joined = gate.within(session)
        claim = joined.claim("a").run()
        assert isinstance(claim, Claimed)
        session.execute(EFFECT)
        assert joined.complete("a", claim.token, b"\x00\xff").run()
    assert gate.claim("a").run() == Done(b"\x00\xff")


@on_every_database
def test_g01_fifty_at_once_in_transactions_have_one_effect(engine: Engine) -> None:
    """The loser of the race waits for the winner's commit and answers `Done`, never an error."""
    gate, barrier = Gate(SqlStore(engine)), threading.Barrier(50)

    def handle(_: int) -> object:
        barrier.wait(60)
        with engine.connect() as connection:
            result = gate.within(connection).claim("a", "aa").run()
            if isinstance(result, Claimed):
                connection.execute(EFFECT)
            connection.commit()
            return result

    with ThreadPoolExecutor(50) as threads:
        results = list(threads.map(handle, range(50)))
    assert sum(isinstance(result, Claimed) for result in results) == 1
    assert results.count(Done(None)) == 49
    assert effects(engine) == 1


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_loser_takes_over_when_the_winner_rolls_back(engine: Engine) -> None:
    gate = Gate(SqlStore(engine))
    with engine.connect() as first, ThreadPoolExecutor(1) as threads:
        assert isinstance(gate.within(first).claim("a").run(), Claimed)

        def second() -> object:
            with engine.begin() as connection:
                return gate.within(connection).claim("a").run()

        waiting = threads.submit(second)
        first.rollback()
        assert isinstance(waiting.result(30), Claimed)


@on_every_database
def test_claim_apart_and_in_a_transaction_know_each_other(engine: Engine) -> None:
    clock = FakeClock()
    gate = Gate(SqlStore(engine), clock=clock)
    late = gate.claim("a", lease=60).run()
    assert isinstance(late, Claimed)
    with engine.begin() as connection:
        assert gate.within(connection).claim("a").run() == InProgress(60.0)
    clock.advance(60)
    with engine.begin() as connection:
        assert isinstance(gate.within(connection).claim("a").run(), Claimed)
    assert not gate.complete("a", late.token).run()
    assert gate.claim("a").run() == Done(None)


@on_every_database
def test_two_transactions_that_take_over_have_one_winner(engine: Engine) -> None:
    clock, barrier = FakeClock(), threading.Barrier(10)
    gate = Gate(SqlStore(engine), clock=clock)
    gate.claim("a", lease=60).run()
    clock.advance(60)

    def handle(_: int) -> object:
        barrier.wait(60)
        with engine.begin() as connection:
            return gate.within(connection).claim("a").run()

    with ThreadPoolExecutor(10) as threads:
        results = list(threads.map(handle, range(10)))
    assert sum(isinstance(result, Claimed) for result in results) == 1
    assert results.count(Done(None)) == 9


# MariaDB's reader holds the row's lock until it has swapped.
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_lease_extended_between_look_and_swap_is_not_taken_over(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    gate = Gate(SqlStore(engine), clock=clock)
    holder = gate.claim("a").run()
    assert isinstance(holder, Claimed)
    clock.advance(gate.lease)
    judge, judged = sqlclaim._take_over, []

    def judge_late(*arguments: Any) -> Any:
        judged.append(1)
        if len(judged) == 1:
            assert gate.extend("a", holder.token).run()
        return judge(*arguments)

    monkeypatch.setattr(sqlclaim, "_take_over", judge_late)
    assert gate.claim("a").run() == InProgress(gate.lease), "a live lease was taken over"
    assert len(judged) == 2, "it looked again"
    assert gate.complete("a", holder.token, b"x").run(), "the holder has lost its claim"
    assert gate.claim("a").run() == Done(b"x")


@on_every_database
def test_g03_duplicate_after_an_hour_and_after_three_days(engine: Engine) -> None:
    clock = FakeClock()
    gate = Gate(SqlStore(engine), clock=clock)
    with engine.begin() as connection:
        assert isinstance(gate.within(connection).claim("a").run(), Claimed)
    for later in (3600, 3 * 86_400):
        clock.advance(later)
        with engine.begin() as connection:
            assert gate.within(connection).claim("a").run() == Done(None)
    clock.advance(4 * 86_400)
    with engine.begin() as connection:
        assert isinstance(gate.within(connection).claim("a").run(), Claimed)


@on_every_database
def test_f31_table_created_by_several_at_once(store_url: str) -> None:
    engine, barrier = sync_engine(store_url), threading.Barrier(8)

    def create(_: int) -> None:
        barrier.wait(60)
        SqlStore(engine).create_table().run()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(create, range(8)))
    assert isinstance(Gate(SqlStore(engine)).claim("a").run(), Claimed)
    engine.dispose()


@on_every_database
def test_times_are_utc_whatever_the_zone_of_the_host(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(SqlStore(engine), max_failures=1, clock=FakeClock(1_800_000_000.0))
    claim = gate.claim("a").run()
    assert isinstance(claim, Claimed)
    gate.release("a", claim.token, "x").run()
    monkeypatch.setenv("TZ", "America/Los_Angeles")
    (letter,) = gate.dead_letters().run()
    assert letter.parked_at.isoformat() == "2027-01-15T08:00:00+00:00"


@on_every_database
def test_the_databases_clock_agrees_with_the_hosts(engine: Engine) -> None:
    import time

    gate = Gate(SqlStore(engine), max_failures=1)
    before = time.time()
    claim = gate.claim("a").run()
    assert isinstance(claim, Claimed)
    gate.release("a", claim.token, "x").run()
    (letter,) = gate.dead_letters().run()
    assert before - 1 <= letter.parked_at.timestamp() <= time.time() + 1


async def test_asynchronous_session(tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'r.sqlite3'}")
    gate = Gate(SqlStore(engine))
    await gate.store.create_table()  # type: ignore[attr-defined]
    async with AsyncSession(engine) as session, session.begin():
        assert isinstance(await gate.within(session).claim("a"), Claimed)
    async with AsyncSession(engine) as session, session.begin():
        assert await gate.within(session).claim("a") == Done(None)
    async with engine.begin() as connection:
        assert await gate.within(connection).claim("a") == Done(None)
    await engine.dispose()


@pytest.mark.parametrize("kind", ["postgresql_async"])
async def test_fifty_asynchronous_transactions_have_one_winner(store_url: str) -> None:
    async with open_store("postgresql_async", store_url) as store:
        engine = store._database.engine  # type: ignore[attr-defined]
        gate = Gate(store)

        async def handle() -> object:
            async with engine.begin() as connection:
                return await gate.within(connection).claim("a")

        results = await asyncio.gather(*[handle() for _ in range(50)])
    assert sum(isinstance(result, Claimed) for result in results) == 1
    assert results.count(Done(None)) == 49


@pytest.mark.parametrize("kind", ["postgresql"])
def test_lost_connection_is_an_sqlalchemy_error_and_heals(
    engine: Engine, postgres: Postgres, store_url: str
) -> None:
    gate = Gate(SqlStore(engine))
    gate.claim("a").run()
    postgres.end_connections(store_url.rpartition("/")[2])
    with pytest.raises(OperationalError) as caught:
        gate.claim("b").run()
    assert caught.value.connection_invalidated
    assert isinstance(gate.claim("b").run(), Claimed)


def test_missing_table_is_an_sqlalchemy_error(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'r.sqlite3'}")
    with pytest.raises(DBAPIError, match="surehook_receipts"):
        Gate(SqlStore(engine)).claim("a").run()
    engine.dispose()


@pytest.mark.parametrize("kind", ["sqlite"])
def test_f29_two_writers_wait_for_each_other(engine: Engine) -> None:
    gate = Gate(SqlStore(engine))
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda n: gate.claim(f"k{n}").run(), range(200)))
    assert all(isinstance(result, Claimed) for result in results)


def test_within_wants_a_sql_store_and_a_transaction(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'r.sqlite3'}")
    with pytest.raises(GateError, match="needs a SqlStore"):
        Gate(MemoryStore()).within(object())
    with pytest.raises(GateError, match="takes a Connection"):
        Gate(SqlStore(engine)).within(engine)
    engine.dispose()


def test_all_names_begin_with_surehook() -> None:
    for table in metadata.tables.values():
        assert table.name.startswith("surehook_")
        assert all(str(index.name).startswith("surehook_") for index in table.indexes)


@on_every_database
def test_constraint_is_the_last_word(engine: Engine) -> None:
    """Even a hand-written second insert under the same key can't get in."""
    gate = Gate(SqlStore(engine))
    gate.claim("a").run()
    insert = text(
        "INSERT INTO surehook_receipts (message_key, state, token, fingerprint, attempts, since, "
        "leased_until, expires_at) VALUES ('a', 'done', '', '', 1, 0, 0, 0)"
    )
    with engine.connect() as connection, pytest.raises(IntegrityError):
        connection.execute(insert)
