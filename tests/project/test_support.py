"""The test tools themselves: a tool that lies would make every other test worthless."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl

import httpx
import psutil
import psycopg
import pytest
import redis as redis_client
import trustme
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from tests.support import parts
from tests.support.postgres import Postgres, running_postgres
from tests.support.processes import Processes
from tests.support.receiver import HANG, RESET, Answer, Receiver
from tests.support.waiting import ConditionNotMetError, wait_until, wait_until_async


async def test_every_test_gets_an_empty_database_of_its_own(database_url: str) -> None:
    engine = create_async_engine(database_url)
    async with engine.begin() as connection:
        # Fails if an earlier test's table is still there.
        await connection.execute(text("CREATE TABLE things (id INTEGER PRIMARY KEY)"))
    await engine.dispose()


test_nor_does_a_second_test_see_it = test_every_test_gets_an_empty_database_of_its_own


def test_a_template_is_prepared_once_and_copied(postgres: Postgres) -> None:
    prepared = []

    def prepare(name: str) -> None:
        prepared.append(name)
        with psycopg.connect(_plain(postgres, name)) as connection:
            connection.execute("CREATE TABLE things (id int)")

    names = [
        postgres.create_database(template=postgres.template("support", prepare)) for _ in range(2)
    ]
    for name in names:
        with psycopg.connect(_plain(postgres, name)) as connection:
            connection.execute("INSERT INTO things VALUES (1)")
            assert connection.execute("SELECT count(*) FROM things").fetchone() == (1,)
        postgres.drop(name)
    assert len(prepared) == 1


def test_dropping_a_database_ends_its_connections(postgres: Postgres) -> None:
    name = postgres.create_database()
    with psycopg.connect(_plain(postgres, name)) as connection:
        postgres.drop(name)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


def test_fsync_is_on_when_asked_for() -> None:
    with (
        running_postgres(fsync=True, settings={"max_connections": "20"}) as server,
        psycopg.connect(_plain(server, "postgres")) as connection,
    ):
        for name, value in (("fsync", "on"), ("max_connections", "20")):
            assert connection.execute(f"SHOW {name}").fetchone() == (value,)
        assert connection.info.server_version >= 180000
        pid = server.pid
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def _plain(server: Postgres, database: str) -> str:
    return server.url(database).replace("+asyncpg", "")


def test_redis_is_real_and_empty(redis_url: str) -> None:
    with redis_client.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
        assert client.set("k", "v", nx=True)
        assert not client.set("k", "w", nx=True)


test_redis_is_empty_again = test_redis_is_real_and_empty


def test_a_missing_part_skips_and_fails_when_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(parts._FINDERS, "mariadb", lambda: None)
    monkeypatch.delenv(parts.STRICT_VARIABLE, raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt-get install mariadb-server"):
        parts.require("mariadb")
    monkeypatch.setenv(parts.STRICT_VARIABLE, "1")
    with pytest.raises(pytest.fail.Exception, match="apt-get install mariadb-server"):
        parts.require("mariadb")


def test_waiting_returns_the_value_or_names_the_condition() -> None:
    values = iter([0, None, "there"])
    assert wait_until(lambda: next(values)) == "there"
    with pytest.raises(ConditionNotMetError, match=r"not within 0 s: the moon .*last seen: \[\]"):
        wait_until(list, deadline=0, what="the moon")
    with pytest.raises(ConditionNotMetError, match="len"):
        wait_until(lambda: len("") > 1, deadline=0)


async def test_waiting_asynchronously_takes_coroutines_and_plain_values() -> None:
    event = asyncio.Event()
    asyncio.get_running_loop().call_later(0.02, event.set)

    async def is_set() -> bool:
        return event.is_set()

    assert await wait_until_async(is_set)
    assert await wait_until_async(event.is_set)
    with pytest.raises(ConditionNotMetError, match="never"):
        await wait_until_async(lambda: False, deadline=0, what="never")


def test_receiver_records_headers_and_body_exactly(receiver: Receiver) -> None:
    body = b'{"a":1.0,\xff\x00\r\n'
    with socket.create_connection((receiver.host, receiver.port)) as connection:
        connection.sendall(
            b"POST /hook?x=1 HTTP/1.1\r\nHost: h\r\nX-A: 1\r\nx-a: \xe9\r\n"
            + f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        [request] = receiver.wait_for(1, "/hook")
    assert request.headers == [
        (b"Host", b"h"), (b"X-A", b"1"), (b"x-a", b"\xe9"),
        (b"Content-Length", str(len(body)).encode()),
    ]  # fmt: skip
    assert (request.method, request.target, request.body) == ("POST", "/hook?x=1", body)
    assert request.header_list("X-A") == ["1", "é"]


def test_receiver_answers_by_script_and_the_last_answer_stays(receiver: Receiver) -> None:
    receiver.script("/hook", Answer(500), lambda request: Answer(202, body=request.body))
    receiver.script("/odd", Answer(raw=b"HTTP/1.1 200 OK\r\n\r\nuntil the end"))
    receiver.script("/slow", Answer(body=b"drop by drop", drip=0.0001, delay=0.001))
    with httpx.Client(base_url=receiver.url()) as client:
        chunks = iter([b"chun", b"ked"])
        answers = [client.post("/hook", content=chunks) for _ in range(1)]
        answers += [client.post("/hook", content=b"two") for _ in range(2)]
        assert [answer.status_code for answer in answers] == [500, 202, 202]
        assert answers[2].content == b"two"
        assert client.get("/odd").content == b"until the end"
        assert client.get("/slow").content == b"drop by drop"
        assert client.get("/other").status_code == 200
    assert receiver.received("/hook")[0].body == b"chunked"
    # One for the keep-alive requests, one more after /odd closed.
    assert receiver.connections == 2


def test_receiver_hangs_and_resets_and_survives_both(receiver: Receiver) -> None:
    receiver.script("/hang", HANG)
    receiver.script("/reset", RESET)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(receiver.url("/hang"), timeout=0.1)
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.post(receiver.url("/reset"))
    assert httpx.post(receiver.url("/fine")).status_code == 200


def test_receiver_stops_while_a_client_hangs() -> None:
    with Receiver() as receiver, socket.socket() as connection:
        receiver.script("/", HANG)
        connection.connect((receiver.host, receiver.port))
        connection.sendall(b"POST / HTTP/1.1\r\n\r\n")
        receiver.wait_for(1)
    assert not receiver._thread.is_alive()


def test_receiver_speaks_tls() -> None:
    authority = trustme.CA()
    server, client = (
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH),
        ssl.create_default_context(),
    )
    authority.issue_cert("127.0.0.1").configure_cert(server)
    authority.configure_trust(client)
    with Receiver(tls=server) as receiver:
        assert httpx.post(receiver.url("/"), verify=client).status_code == 200


def test_a_process_is_awaited_killed_and_reported(processes: Processes) -> None:
    server = processes.python("http.server", "0", "--bind", "127.0.0.1")
    match = server.wait_for(r"port (\d+)")
    assert match is not None
    assert httpx.get(f"http://127.0.0.1:{match[1]}/LICENSE").status_code == 200
    server.kill()
    assert server.returncode == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)


def test_a_process_that_ends_early_shows_its_output(processes: Processes) -> None:
    broken = processes.python("http.server", "--no-such-option")
    with pytest.raises(AssertionError, match=r"(?s)ended with 2 before.*unrecognized arguments"):
        broken.wait_for("Serving")
    assert broken.wait() == 2


def test_children_of_a_process_are_cleaned_up_too() -> None:
    with Processes() as processes:
        shell = processes.start("sh", "-c", "sleep 300 & echo child $!; wait")
        match = shell.wait_for(r"child (\d+)")
        assert match is not None
    # An orphan is a zombie until its new parent reaps it.
    wait_until(lambda: not _is_alive(int(match[1])), what="the child is gone")


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
