"""Claim and effect in one transaction of the caller: they commit together or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from receiver.answer import Answer
from receiver.gate import Gate
from receiver.handle import Receiver
from receiver.message import Message
from receiver.request import Request
from receiver.sql import SqlStore
from tests.receiver import samples
from tests.receiver.samples import NOW

INSERT = text("INSERT INTO ledger (id) VALUES (:id)")
SAMPLE = samples.standard()
SAMPLE.verifier._clock = lambda: NOW


@pytest.fixture
def engine(tmp_path: Path) -> Any:
    engine = create_engine(f"sqlite:///{tmp_path / 'ledger.db'}")
    SqlStore(engine).create_table().run()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE ledger (id TEXT)"))
    yield engine
    engine.dispose()


def rows(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return [row[0] for row in connection.execute(text("SELECT id FROM ledger"))]


def request() -> Request:
    return Request(SAMPLE.headers, SAMPLE.body)


class Ledger:
    """A handler that writes a row, and then fails as it is told."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes = list(outcomes)

    def __call__(self, message: Message, session: Session) -> Any:
        session.execute(INSERT, {"id": message.id})
        return self.end()

    async def asynchronous(self, message: Message, session: Any) -> Any:
        await session.execute(INSERT, {"id": message.id})
        return self.end()

    def end(self) -> Any:
        outcome = self.outcomes.pop(0) if self.outcomes else "booked"
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def test_row_and_claim_commit_together(engine: Engine) -> None:
    sessions = sessionmaker(engine)
    receiver = Receiver(
        SAMPLE.verifier, Gate(SqlStore(engine)), Ledger(), transaction=sessions.begin
    )
    answers = [receiver.process(request()) for _ in range(3)]
    assert [(answer.status, answer.body) for answer in answers] == [(200, b"booked")] * 3
    assert rows(engine) == ["msg_1"]


def test_a_failure_rolls_both_back_and_is_counted(engine: Engine) -> None:
    gate = Gate(SqlStore(engine), max_failures=3)
    ledger = Ledger(RuntimeError("no luck"), Answer(503))
    receiver = Receiver(SAMPLE.verifier, gate, ledger, transaction=sessionmaker(engine).begin)
    assert receiver.process(request()).status == 500
    assert rows(engine) == []
    assert receiver.process(request()).status == 503
    assert rows(engine) == []
    assert receiver.process(request()).status == 200
    assert rows(engine) == ["msg_1"]


def test_failures_park_a_message(engine: Engine) -> None:
    gate = Gate(SqlStore(engine), max_failures=1)
    ledger = Ledger(RuntimeError("no luck"))
    receiver = Receiver(SAMPLE.verifier, gate, ledger, transaction=sessionmaker(engine).begin)
    assert [receiver.process(request()).status for _ in range(2)] == [500, 503]
    (letter,) = gate.dead_letters().run()
    assert "no luck" in (letter.error or "")
    assert rows(engine) == []


async def test_a_plain_handler_in_an_asynchronous_app(engine: Engine) -> None:
    receiver = Receiver(
        SAMPLE.verifier, Gate(SqlStore(engine)), Ledger(), transaction=sessionmaker(engine).begin
    )
    assert [(await receiver.process_async(request())).status for _ in range(2)] == [200, 200]
    assert rows(engine) == ["msg_1"]


async def test_an_async_session(engine: Engine, tmp_path: Path) -> None:
    async_engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'ledger.db'}")
    ledger = Ledger(RuntimeError("no luck"))
    receiver = Receiver(
        SAMPLE.verifier,
        Gate(SqlStore(async_engine)),
        ledger.asynchronous,
        transaction=async_sessionmaker(async_engine).begin,
    )
    statuses = [(await receiver.process_async(request())).status for _ in range(3)]
    await async_engine.dispose()
    assert statuses == [500, 200, 200]
    assert rows(engine) == ["msg_1"]


def test_a_commit_that_fails_is_no_2xx(engine: Engine) -> None:
    class Context:
        def __init__(self) -> None:
            self.session = Session(engine)

        def __enter__(self) -> Session:
            return self.session

        def __exit__(self, kind: object, *_: object) -> None:
            self.session.rollback()
            self.session.close()
            if kind is None:
                raise RuntimeError("the commit failed")

    receiver = Receiver(SAMPLE.verifier, Gate(SqlStore(engine)), Ledger(), transaction=Context)
    assert receiver.process(request()).status == 500
    assert rows(engine) == []


def test_a_database_that_is_away_is_a_503(engine: Engine) -> None:
    def away() -> Any:
        return sessionmaker(create_engine("sqlite:////nowhere/at/all.db")).begin()

    receiver = Receiver(SAMPLE.verifier, Gate(SqlStore(engine)), Ledger(), transaction=away)
    assert receiver.process(request()).status == 503
