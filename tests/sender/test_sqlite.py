"""SQLite with several writers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sqlalchemy import func, select

from sender import publish
from sender.sqlite import READ_ONLY
from sender.tables import endpoints, events
from tests.support.tables import stored, sync_engine


def test_f29_writers_that_read_first_take_turns(sqlite_tables: str) -> None:
    engines = [sync_engine(sqlite_tables) for _ in range(4)]
    together = threading.Barrier(4)

    def work(number: int) -> None:
        together.wait(20)
        for turn in range(10):
            with engines[number].begin() as connection:
                seen = connection.scalar(select(func.count()).select_from(events))
                publish(connection, tenant="acme", type="a.b", data=[number, turn, seen])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    with engines[0].begin() as connection:
        assert stored(connection)[0] == 40
        # Each read was of the state it then wrote on: no two saw the same count.
        bodies = connection.scalars(select(events.c.body)).all()
    assert len({body.rpartition(b",")[2] for body in bodies}) == 40
    for engine in engines:
        engine.dispose()


def test_readers_do_not_wait_for_the_writer(sqlite_tables: str) -> None:
    engine = sync_engine(sqlite_tables)
    with engine.begin() as writer:
        publish(writer, tenant="acme", type="a.b", data=1)
        with engine.connect().execution_options(**{READ_ONLY: True}) as reader:
            assert reader.scalar(select(endpoints.c.id)) is None
            assert stored(reader) == (0, 0, 0)
    engine.dispose()


def test_each_connection_is_durable_and_waits(sqlite_tables: str) -> None:
    engine = sync_engine(sqlite_tables)
    with engine.begin() as connection:
        values = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "busy_timeout")
        }
    engine.dispose()
    assert values == {"journal_mode": "wal", "synchronous": 2, "busy_timeout": 20_000}


def test_several_are_the_first_on_a_new_file(tmp_path: Path) -> None:
    """SQLite by itself refuses one of eight on one file in fifteen or so."""
    together = threading.Barrier(8)

    def mode(file: Path) -> str:
        engine = sync_engine(f"sqlite+aiosqlite:///{file}")
        together.wait(20)
        with engine.connect() as connection:
            found: str = connection.exec_driver_sql("PRAGMA journal_mode").scalar_one()
        engine.dispose()
        return found

    with ThreadPoolExecutor(8) as pool:
        for number in range(100):
            assert set(pool.map(mode, [tmp_path / f"{number}.sqlite3"] * 8)) == {"wal"}
