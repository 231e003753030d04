"""The queue: scan, claim and settle, the same on both databases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, select

from delivery_service.policy.sharing import Want
from delivery_service.store import deliveries, due, endpoints, queue, settle
from sender import publish
from sender import tables as t
from sender.types import moment
from tests.support.tables import sync_engine

NOW = datetime(2026, 11, 29, 10, 0, 0, tzinfo=UTC)
LEASE = timedelta(seconds=60)

Endpoint = Callable[..., str]


@pytest.fixture
def endpoint(engine: Engine) -> Endpoint:
    """Create an endpoint of tenant ``acme``; the values are columns."""

    def make(**values: Any) -> str:
        row = {"tenant_id": "acme", "url": "https://h.example/", **values}
        with engine.begin() as connection:
            return endpoints.create(connection, row, b"sealed", NOW)

    return make


def fill(engine: Engine, count: int = 1, now: datetime | None = NOW, step: float = 0) -> list[str]:
    """Publish so many events, ``step`` seconds apart; return the ids of the deliveries."""
    ids: list[str] = []
    with engine.begin() as connection:
        for number in range(count):
            at = None if now is None else now + timedelta(seconds=step * number)
            ids += publish(connection, tenant="acme", type="a.b", data=1, now=at).delivery_ids
    return ids


def claim(
    connection: Connection,
    endpoint_id: str,
    token: str = "one",
    count: int = 100,
    now: datetime | None = NOW,
    lanes: Sequence[int] = (0, 1),
) -> list[queue.Claimed]:
    wants = [Want(endpoint_id, lane, count) for lane in lanes]
    return queue.claim(connection, wants, token, LEASE, now)


def lease(row: queue.Claimed, **more: Any) -> dict[str, Any]:
    return {"delivery_id": row.delivery_id, "token": row.token, "claims": row.claims, **more}


def rows(connection: Connection) -> dict[str, Any]:
    return {row.delivery_id: row for row in connection.execute(select(t.queue))}


def test_a_claim_gives_all_that_is_needed_to_send(engine: Engine, endpoint: Endpoint) -> None:
    id_ = endpoint()
    (delivery,) = fill(engine)
    with engine.begin() as connection:
        (got,) = claim(connection, id_, "token")
        event = connection.execute(select(t.events)).one()
        row = rows(connection)[delivery]
    assert (got.delivery_id, got.token, got.claims) == (delivery, "token", 1)
    assert (got.body, got.content_type) == (event.body, "application/json")
    assert (got.event_id, got.event_type, got.tenant_id) == (event.id, "a.b", "acme")
    assert (got.attempts, got.attempts_before, got.status) == (0, 0, "pending")
    assert got.claimed_at == NOW
    assert (row.lease_token, row.due_at, row.claims) == ("token", NOW + LEASE, 1)


def test_an_expired_lease_is_due_again_and_not_before(engine: Engine, endpoint: Endpoint) -> None:
    id_ = endpoint()
    fill(engine)
    with engine.begin() as connection:
        (first,) = claim(connection, id_, "one")
        almost = NOW + LEASE - timedelta(milliseconds=1)
        assert claim(connection, id_, "two", now=almost) == []
        assert due.scan(connection, "", almost).lanes == ()
        assert due.scan(connection, "", NOW + LEASE).lanes == ((id_, 0),)
        (second,) = claim(connection, id_, "two", now=NOW + LEASE)
        assert second.claims == 2
        # The first holder can change nothing any more.
        assert settle.remove(connection, [lease(first)]) == set()
        assert settle.reschedule(connection, [lease(first, delay=5)], NOW) == set()
        assert settle.give_back(connection, [lease(first, delay=0)], NOW) == set()
        assert rows(connection)[second.delivery_id].lease_token == "two"
        assert settle.remove(connection, [lease(second)]) == {second.delivery_id}
        assert rows(connection) == {}


def test_retries_go_into_their_lane_without_lease_or_claims(
    engine: Engine, endpoint: Endpoint
) -> None:
    id_ = endpoint()
    one, two = fill(engine, 2)
    with engine.begin() as connection:
        got = {row.delivery_id: row for row in claim(connection, id_)}
        retries = [lease(got[one], delay=0.25), lease(got[two], delay=90.0)]
        assert settle.reschedule(connection, retries, NOW) == {one, two}
        after = rows(connection)
        assert {(r.lane, r.claims, r.lease_token) for r in after.values()} == {(1, 0, None)}
        assert after[one].due_at == NOW + timedelta(seconds=0.25)
        assert after[two].due_at == NOW + timedelta(seconds=90)
        later = NOW + timedelta(seconds=90)
        assert claim(connection, id_, now=later, lanes=[0]) == []
        assert len(claim(connection, id_, now=later, lanes=[1])) == 2


def test_given_back_is_as_if_never_claimed(engine: Engine, endpoint: Endpoint) -> None:
    id_ = endpoint()
    (delivery,) = fill(engine)
    with engine.begin() as connection:
        before = rows(connection)[delivery]
        (row,) = claim(connection, id_)
        assert settle.give_back(connection, [lease(row, delay=0)], NOW) == {delivery}
        assert rows(connection)[delivery] == before
        (row,) = claim(connection, id_)
        settle.give_back(connection, [lease(row, delay=2)], NOW)
        assert rows(connection)[delivery].due_at == NOW + timedelta(seconds=2)


def test_the_oldest_of_each_lane_come_first_and_no_more_than_wanted(
    engine: Engine, endpoint: Endpoint
) -> None:
    id_ = endpoint()
    ids = fill(engine, 10, step=1)
    at = NOW + timedelta(seconds=20)
    with engine.begin() as connection:
        assert [r.delivery_id for r in claim(connection, id_, count=3, now=at)] in (
            ids[:3],
            ids[2::-1],
        ) or {r.delivery_id for r in rows(connection).values() if r.lease_token} == set(ids[:3])
        assert len(claim(connection, id_, count=100, now=NOW + timedelta(seconds=5))) == 3
        assert queue.claim(connection, [], "x", LEASE, at) == []
        assert claim(connection, "ep_unknown", now=at) == []


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"description": "well"}, True),
        ({"paused_until": NOW + timedelta(seconds=1)}, False),
        ({"paused_until": NOW}, True),
        ({"rate_next_at": NOW + timedelta(milliseconds=1)}, False),
        ({"rate_next_at": NOW}, True),
        # Those of endpoints that are not enabled are let through: the worker ends them.
        ({"status": "disabled", "paused_until": NOW + LEASE}, True),
        ({"deleted_at": NOW, "paused_until": NOW + LEASE}, True),
    ],
)
def test_what_is_held_back(
    engine: Engine, endpoint: Endpoint, values: dict[str, Any], expected: bool
) -> None:
    id_ = endpoint()
    fill(engine)
    with engine.begin() as connection:
        connection.execute(t.endpoints.update().values(**values))
        assert due.scan(connection, "", NOW).lanes == (((id_, 0),) if expected else ())


def test_a_large_backlog_does_not_hide_the_others(
    engine: Engine, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due, "PEEK", 5)
    monkeypatch.setattr(due, "STEPS", 3)
    big = endpoint()
    fill(engine, 30)
    others = [endpoint(event_types=["x.y"]) for _ in range(10)]
    with engine.begin() as connection:
        publish(connection, tenant="acme", type="x.y", data=1, now=NOW + timedelta(seconds=1))
        found: set[str] = set()
        cursor = ""
        for _ in range(6):
            scan = due.scan(connection, cursor, NOW + timedelta(seconds=2))
            cursor = scan.cursor
            lanes = [lane for lane, _ in scan.lanes]
            assert len(lanes) == len(set(scan.lanes))
            found |= set(lanes)
    assert found == {big, *others}


def test_an_orphan_is_taken_out(engine: Engine, endpoint: Endpoint) -> None:
    id_ = endpoint()
    lost, kept = fill(engine, 2)
    with engine.begin() as connection:
        connection.execute(t.deliveries.delete().where(t.deliveries.c.id == lost))
        assert [row.delivery_id for row in claim(connection, id_)] == [kept]
        assert set(rows(connection)) == {kept}
        connection.execute(t.endpoints.delete())
        at = NOW + LEASE
        assert due.scan(connection, "", at).lanes == ((id_, 0),)
        assert len(claim(connection, id_, now=at)) == 1


def test_by_the_databases_own_clock(engine: Engine, endpoint: Endpoint) -> None:
    """Without ``now``: what was published by it is due, for a lease of its time."""
    id_ = endpoint()
    (delivery,) = fill(engine, now=None)
    with engine.begin() as connection:
        assert due.scan(connection, "").lanes == ((id_, 0),)
        (row,) = claim(connection, id_, now=None)
        clock = connection.scalar(select(moment(None)))
        assert abs(row.claimed_at - clock) < timedelta(seconds=30)
        left = rows(connection)[delivery].due_at - row.claimed_at
        assert left == LEASE
        assert claim(connection, id_, now=None) == []
        assert settle.reschedule(connection, [lease(row, delay=-1)]) == {delivery}
        assert len(claim(connection, id_, now=None)) == 1


def test_f01_two_open_transactions_never_claim_the_same(
    postgresql_tables: str,
) -> None:
    """On SQLite the second transaction does not begin before the first one's end."""
    engine = sync_engine(postgresql_tables)
    with engine.begin() as connection:
        values = {"tenant_id": "acme", "url": "https://h.example/"}
        id_ = endpoints.create(connection, values, b"sealed", NOW)
    fill(engine, 10)
    with engine.connect() as one, engine.connect() as two:
        first = {row.delivery_id for row in claim(one, id_, "one", count=6)}
        second = {row.delivery_id for row in claim(two, id_, "two", count=6)}
        assert (len(first), len(second)) == (6, 4)
        assert not first & second
        one.rollback()
        two.commit()
        third = {row.delivery_id for row in claim(one, id_, "three")}
        assert third == first
        one.commit()
    engine.dispose()


def test_cancel_takes_a_delivery_out_whoever_holds_it(engine: Engine, endpoint: Endpoint) -> None:
    id_ = endpoint()
    waiting, leased = fill(engine, 2)
    with engine.begin() as connection:
        got = [r for r in claim(connection, id_) if r.delivery_id == leased]
        for delivery in (waiting, leased):
            assert deliveries.cancel(connection, delivery, NOW)
            assert not deliveries.cancel(connection, delivery, NOW)
            found = deliveries.get(connection, delivery)
            assert found is not None
            assert (found["status"], found["reason"]) == ("cancelled", "cancelled")
            assert (found["undelivered"], found["ended_at"]) == (True, NOW)
        assert settle.remove(connection, [lease(got[0])]) == set()
        assert rows(connection) == {}


def test_ending_all_of_an_endpoint_leaves_the_others(engine: Engine, endpoint: Endpoint) -> None:
    one, two = endpoint(), endpoint()
    fill(engine, 3)
    with engine.begin() as connection:
        claim(connection, one, count=1)
        assert deliveries.end_pending_of(connection, [one], "skipped", "why", NOW) == 3
        assert deliveries.end_pending_of(connection, [one], "skipped", "why", NOW) == 0
        assert {row.endpoint_id for row in rows(connection).values()} == {two}
        page = deliveries.page(connection, limit=10, endpoint_id=one)
        assert {(row["status"], row["reason"]) for row in page} == {("skipped", "why")}
        assert len(deliveries.page(connection, limit=10, status="pending")) == 3
        assert len(deliveries.page(connection, limit=10, status="skipped")) == 3


def test_pages_of_one_moment_neither_repeat_nor_miss(engine: Engine, endpoint: Endpoint) -> None:
    endpoint()
    ids = fill(engine, 25)
    with engine.begin() as connection:
        got: list[str] = []
        before = None
        while page := deliveries.page(connection, limit=10, before=before):
            got += [row["id"] for row in page]
            before = got[-1]
        assert got == sorted(ids, reverse=True)
        at = {"since": NOW, "until": NOW + timedelta(milliseconds=1)}
        assert len(deliveries.page(connection, limit=99, **at)) == 25
        assert deliveries.page(connection, limit=99, until=NOW) == []
        assert deliveries.page(connection, limit=99, since=NOW + timedelta(milliseconds=1)) == []


def test_retry_now_moves_only_what_waits(engine: Engine, endpoint: Endpoint) -> None:
    id_ = endpoint()
    (delivery,) = fill(engine)
    later = NOW + timedelta(seconds=5)
    with engine.begin() as connection:
        (row,) = claim(connection, id_)
        assert not deliveries.retry_now(connection, delivery, later)
        settle.reschedule(connection, [lease(row, delay=3600)], NOW)
        assert deliveries.retry_now(connection, delivery, later)
        assert rows(connection)[delivery].due_at == later
        assert not deliveries.retry_now(connection, "dlv_x", later)


def test_secrets_overlap_and_end(engine: Engine, endpoint: Endpoint) -> None:
    id_ = endpoint()
    hour = timedelta(hours=1)

    def active(connection: Connection, at: datetime) -> list[bytes]:
        return [s["ciphertext"] for s in endpoints.active_secrets(connection, [id_], at)[id_]]

    with engine.begin() as connection:
        endpoints.rotate_secret(connection, id_, b"second", hour, NOW)
        endpoints.rotate_secret(connection, id_, b"third", hour, NOW + hour / 2)
        assert active(connection, NOW + hour / 2) == [b"third", b"second", b"sealed"]
        assert active(connection, NOW + hour) == [b"third", b"second"]
        assert active(connection, NOW + hour * 1.5) == [b"third"]
        assert active(connection, NOW + hour * 9999) == [b"third"]
        assert not endpoints.rotate_secret(connection, "ep_x", b"x", hour, NOW)


def test_a_deleted_endpoint_keeps_no_credentials(engine: Engine, endpoint: Endpoint) -> None:
    id_ = endpoint(headers=b"sealed", tls=b"sealed")
    fill(engine)
    with engine.begin() as connection:
        assert endpoints.remove(connection, id_, NOW)
        assert not endpoints.remove(connection, id_, NOW)
        assert endpoints.get(connection, id_) is None
        (row,) = endpoints.rows(connection, [id_])
        assert (row["deleted_at"], row["headers"], row["tls"]) == (NOW, None, None)
        assert endpoints.active_secrets(connection, [id_], NOW) == {id_: []}
        assert rows(connection) == {}
