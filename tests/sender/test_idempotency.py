"""Idempotency keys: one event for each key, and the same answer to every repeat."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Engine, select

from sender import IdempotencyConflict, NewEvent, publish, publish_many
from sender.tables import deliveries, events
from tests.sender.conftest import AddEndpoint
from tests.support.tables import stored
from wire import RawJson

SAME: dict[str, Any] = {"tenant": "acme", "type": "a.b", "data": {"n": 1}, "idempotency_key": "k"}


def test_same_key_and_content_give_the_first_event(
    engine: Engine, add_endpoint: AddEndpoint
) -> None:
    add_endpoint()
    add_endpoint(status="disabled")
    with engine.begin() as connection:
        first = publish(connection, **SAME)
    with engine.begin() as connection:
        again = publish(connection, **SAME)
        other_tenant = publish(connection, **{**SAME, "tenant": "other"})
        same_bytes = publish(connection, **{**SAME, "data": RawJson('{"n":1}')})
        assert stored(connection) == (2, 2, 1)
    assert (again.event_id, again.delivery_ids) == (first.event_id, first.delivery_ids)
    assert (first.duplicate, again.duplicate, other_tenant.duplicate) == (False, True, False)
    assert same_bytes.event_id == first.event_id


@pytest.mark.parametrize(
    "change",
    [
        {"data": {"n": 2}},
        {"data": RawJson('{"n": 1}')},
        {"type": "a.c"},
        {"body": b"{}"},
        {"body": b',"data":{"n":1}}', "content_type": "application/xml"},
    ],
)
def test_other_content_is_a_conflict(engine: Engine, change: dict[str, Any]) -> None:
    other = {**SAME, **change}
    if "body" in change:
        del other["data"]
    with engine.begin() as connection:
        first = publish(connection, **SAME)
    with engine.begin() as connection:
        with pytest.raises(IdempotencyConflict, match="idempotency_key 'k'") as caught:
            publish(connection, **other)
        assert caught.value.event_id == first.event_id
        assert caught.value.key == "k"
    with engine.begin() as connection:
        assert stored(connection)[0] == 1


def test_a_conflict_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(IdempotencyConflict("k", "evt_1")))
    assert (error.key, error.event_id) == ("k", "evt_1")
    assert "evt_1" in str(error)


def test_content_types_belong_to_the_content(engine: Engine) -> None:
    with engine.begin() as connection:
        for content_type in ("text/plain", "text/html"):
            raw = {"body": b"x", "content_type": content_type, "idempotency_key": content_type}
            publish(connection, tenant="acme", type="a.b", **raw)
        with pytest.raises(IdempotencyConflict):
            publish(
                connection,
                tenant="acme",
                type="a.b",
                body=b"x",
                content_type="text/css",
                idempotency_key="text/html",
            )


def test_repeats_within_a_batch(engine: Engine, add_endpoint: AddEndpoint) -> None:
    add_endpoint()
    with engine.begin() as connection:
        earlier = publish(connection, tenant="acme", type="a.b", data=0, idempotency_key="old")
    batch = [
        NewEvent(**SAME),
        NewEvent(tenant="acme", type="a.b", data=0, idempotency_key="old"),
        NewEvent(**SAME),
        NewEvent(tenant="acme", type="a.b", data=5),
        NewEvent(tenant="acme", type="a.b", data=0, idempotency_key="old"),
    ]
    with engine.begin() as connection:
        done = publish_many(connection, batch)
        assert stored(connection) == (3, 3, 3)
    assert [p.duplicate for p in done] == [False, True, True, False, True]
    assert done[0].event_id == done[2].event_id
    assert done[0].delivery_ids == done[2].delivery_ids
    assert done[1].event_id == done[4].event_id == earlier.event_id
    assert done[1].delivery_ids == earlier.delivery_ids


def test_a_conflict_leaves_nothing_even_when_the_caller_commits(
    engine: Engine, add_endpoint: AddEndpoint
) -> None:
    add_endpoint()
    with engine.begin() as connection:
        publish(connection, **SAME)
    conflicting = NewEvent(tenant="acme", type="a.b", data="other", idempotency_key="k")
    fresh = NewEvent(tenant="acme", type="a.b", data=1, idempotency_key="fresh")
    plain = NewEvent(tenant="acme", type="a.b", data=2)
    for batch in ([fresh, plain, conflicting], [conflicting], [fresh, conflicting, conflicting]):
        with engine.begin() as connection:
            with pytest.raises(IdempotencyConflict):
                publish_many(connection, batch)
            # The transaction can still be used.
            assert connection.scalar(select(events.c.id)) is not None
        with engine.begin() as connection:
            assert stored(connection) == (1, 1, 1)
    inside = [fresh, NewEvent(tenant="acme", type="a.b", data=9, idempotency_key="fresh")]
    with engine.begin() as connection:
        with pytest.raises(IdempotencyConflict):
            publish_many(connection, inside)
        assert stored(connection) == (1, 1, 1)


def test_a_rolled_back_key_is_free(engine: Engine) -> None:
    with engine.connect() as connection:
        publish(connection, **SAME)
        connection.rollback()
    with engine.begin() as connection:
        assert not publish(connection, **{**SAME, "data": "other"}).duplicate


def test_threads_with_one_key_make_one_event(engine: Engine, add_endpoint: AddEndpoint) -> None:
    add_endpoint()
    together = threading.Barrier(6)

    def run(_number: int) -> tuple[str, tuple[str, ...], bool]:
        together.wait(20)
        with engine.begin() as connection:
            done = publish(connection, **SAME)
        return done.event_id, done.delivery_ids, done.duplicate

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(run, range(6)))
    assert len({(event, ids) for event, ids, _ in answers}) == 1
    assert sorted(duplicate for *_, duplicate in answers) == [False] + [True] * 5
    with engine.begin() as connection:
        assert stored(connection) == (1, 1, 1)


def test_a_waiting_repeat_sees_the_rollback_of_the_first(
    engine: Engine, add_endpoint: AddEndpoint
) -> None:
    add_endpoint()
    started = threading.Event()

    def repeat() -> bool:
        with engine.begin() as connection:
            started.set()
            return publish(connection, **SAME).duplicate

    with engine.connect() as first, ThreadPoolExecutor(1) as pool:
        publish(first, **SAME)
        waiting = pool.submit(repeat)
        if engine.dialect.name == "postgresql":  # on SQLite, BEGIN itself waits
            started.wait(20)
        first.rollback()
        assert waiting.result(20) is False
    with engine.begin() as connection:
        assert stored(connection) == (1, 1, 1)


def test_a_key_repeats_after_copies_were_made(engine: Engine, add_endpoint: AddEndpoint) -> None:
    """What was sent as new later is not part of the first answer."""
    add_endpoint()
    with engine.begin() as connection:
        first = publish(connection, **SAME)
        row = connection.execute(select(deliveries)).one()._asdict()
        copy = {**row, "id": "dlv_copy", "copy_of": row["id"]}
        connection.execute(deliveries.insert().values(**copy))
        assert publish(connection, **SAME).delivery_ids == first.delivery_ids
