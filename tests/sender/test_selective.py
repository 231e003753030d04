"""Later delivery, channels, payload filters and models, through the library door."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from threading import Barrier
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel, Field
from sqlalchemy import Engine, select

from sender import (
    IdempotencyConflict,
    NewEvent,
    PublishError,
    publish,
    publish_many,
    register_event_types,
)
from sender import tables as t
from tests.sender.conftest import AddEndpoint
from tests.support.tables import statements
from wire.errors import EnvelopeError

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
EVENT: dict[str, Any] = {"tenant": "acme", "type": "invoice.paid", "data": {"total": 120}}


def _due(engine: Engine) -> dict[str, datetime]:
    with engine.begin() as connection:
        return {row.delivery_id: row.due_at for row in connection.execute(select(t.queue))}


@pytest.mark.parametrize("ahead", [timedelta(seconds=1), timedelta(hours=5), timedelta(days=90)])
def test_an_event_for_later_is_due_then(
    engine: Engine, add_endpoint: AddEndpoint, ahead: timedelta
) -> None:
    add_endpoint()
    add_endpoint()
    at = (NOON + ahead).astimezone(timezone(timedelta(hours=-7)))
    with engine.begin() as connection:
        later = publish(connection, **EVENT, deliver_at=at, now=NOON)
        now = publish(connection, **EVENT, now=NOON)
    assert _due(engine) == {
        **dict.fromkeys(later.delivery_ids, NOON + ahead),
        **dict.fromkeys(now.delivery_ids, NOON),
    }
    with engine.begin() as connection:
        stored = {row.id: row.deliver_at for row in connection.execute(select(t.events))}
    assert stored == {later.event_id: NOON + ahead, now.event_id: None}


def test_by_the_database_s_clock_too(engine: Engine, add_endpoint: AddEndpoint) -> None:
    add_endpoint()
    at = datetime.now(UTC).replace(microsecond=123_456) + timedelta(hours=1)
    with engine.begin() as connection:
        (later,) = publish(connection, **EVENT, deliver_at=at).delivery_ids
        (past,) = publish(connection, **EVENT, deliver_at=at - timedelta(hours=2)).delivery_ids
    due = _due(engine)
    assert due[later] == at
    assert abs(due[past] - (at - timedelta(hours=1))) < timedelta(minutes=5)


def test_a_past_moment_means_at_once(engine: Engine, add_endpoint: AddEndpoint) -> None:
    add_endpoint()
    with engine.begin() as connection:
        for at in (NOON, NOON - timedelta(days=400)):
            publish(connection, **EVENT, deliver_at=at, now=NOON)
    assert set(_due(engine).values()) == {NOON}


@pytest.mark.parametrize(
    "at",
    [
        NOON + timedelta(days=90, seconds=1),
        datetime(9999, 12, 31, tzinfo=UTC),
        datetime(2026, 12, 1),  # noqa: DTZ001 - what is refused
        "2026-12-01T00:00:00Z",
    ],
)
def test_what_is_too_far_or_no_moment_is_refused(engine: Engine, at: Any) -> None:
    with engine.begin() as connection:
        with pytest.raises(PublishError, match="deliver_at"):
            publish(connection, **EVENT, deliver_at=at, now=NOON)
        assert connection.execute(select(t.events)).all() == []


def test_a_batch_for_later_takes_one_statement_more(
    engine: Engine, add_endpoint: AddEndpoint
) -> None:
    add_endpoint()
    moments = [NOON + timedelta(minutes=minute) for minute in range(1, 41)]
    counts = []
    for chosen in (moments[:2], moments):
        events = [NewEvent(**EVENT, deliver_at=at) for at in chosen]
        with statements(engine) as sent, engine.begin() as connection:
            done = publish_many(connection, events, now=NOON)
        counts.append(len(sent))
    assert counts[0] == counts[1]
    due = _due(engine)
    assert [due[published.delivery_ids[0]] for published in done] == moments


def test_a_repeat_must_be_for_the_same_moment_and_channels(engine: Engine) -> None:
    at = NOON + timedelta(hours=1)
    same: dict[str, Any] = {**EVENT, "idempotency_key": "k", "now": NOON}
    with engine.begin() as connection:
        first = publish(connection, **same, deliver_at=at, channels=["a", "b"])
        again = publish(
            connection,
            **same,
            deliver_at=at.astimezone(timezone(timedelta(hours=2))),
            channels=["b", "a", "a"],
        )
        assert (again.event_id, again.duplicate) == (first.event_id, True)
        for other in ({"channels": ["a", "b"]}, {"deliver_at": at}):
            with pytest.raises(IdempotencyConflict):
                publish(connection, **same, **other)


@pytest.mark.parametrize(
    ("of_endpoint", "of_event", "expected"),
    [
        (None, (), True),
        (None, ("a",), True),
        (["a"], (), False),
        (["a"], ("a",), True),
        (["a", "b"], ("b", "c"), True),
        (["a"], ("A",), False),
    ],
)
def test_channels_narrow_what_an_endpoint_gets(
    engine: Engine,
    add_endpoint: AddEndpoint,
    of_endpoint: list[str] | None,
    of_event: tuple[str, ...],
    expected: bool,
) -> None:
    add_endpoint(channels=of_endpoint)
    with engine.begin() as connection:
        done = publish(connection, **EVENT, channels=of_event)
    assert bool(done.delivery_ids) is expected


@pytest.mark.parametrize("channels", ["a", [""], ["a b"], ["x" * 129], [1], ["é"]])
def test_bad_channels_are_refused(engine: Engine, channels: Any) -> None:
    with engine.begin() as connection, pytest.raises(PublishError, match="channels"):
        publish(connection, **EVENT, channels=channels)
    many = [f"c{number}" for number in range(21)]
    with engine.begin() as connection, pytest.raises(PublishError, match="channels"):
        publish(connection, **EVENT, channels=many)


def test_a_filter_is_asked_of_the_data_as_it_is_sent(
    engine: Engine, add_endpoint: AddEndpoint
) -> None:
    dear = add_endpoint(filter={"path": "/total", "gte": 100})
    cheap = add_endpoint(filter={"path": "/total", "lt": 100})
    other_type = add_endpoint(event_types=["a.b"], filter={"path": "/total", "gte": 100})
    all_ = add_endpoint()
    with engine.begin() as connection:
        publish(connection, **EVENT)
        rows = connection.execute(select(t.deliveries.c.endpoint_id)).scalars()
        assert set(rows) == {dear, all_}
        raw = publish(connection, tenant="acme", type="a.b", body=b'{"data":{"total":120}}')
        rows = connection.execute(
            select(t.deliveries.c.endpoint_id).where(t.deliveries.c.event_id == raw.event_id)
        ).scalars()
        assert set(rows) == {all_}  # a raw body has no data
    assert len({dear, cheap, other_type, all_}) == 4


class InvoicePaid(BaseModel):
    """An invoice was paid in full.

    Not a part of it.
    """

    event_type: ClassVar[str] = "invoice.paid"

    id: int
    total: Decimal
    customer: str = Field(serialization_alias="customerName")


def test_an_event_can_be_a_model(engine: Engine, add_endpoint: AddEndpoint) -> None:
    add_endpoint(filter={"path": "/customerName", "prefix": "A"})
    event = InvoicePaid(id=7, total=Decimal("1.10"), customer="Acmé")
    with engine.begin() as connection:
        done = publish(connection, tenant="acme", event=event)
        row = connection.execute(select(t.events)).one()
    assert len(done.delivery_ids) == 1
    assert row.type == "invoice.paid"
    data = '{"id":7,"total":"1.10","customerName":"Acmé"}'
    assert row.body.endswith(f',"data":{data}}}'.encode())


class _Plain:
    event_type: ClassVar[str] = "a.b"

    def __init__(self, text: str) -> None:
        self._text = text

    def model_dump_json(self, *, by_alias: bool) -> str:
        assert by_alias
        return self._text


def test_it_need_not_be_pydantic(engine: Engine) -> None:
    with engine.begin() as connection:
        publish(connection, tenant="acme", event=_Plain('{"n": 1.10}'))
        assert connection.execute(select(t.events)).one().body.endswith(b'"data":{"n": 1.10}}')
        with pytest.raises(EnvelopeError):
            publish(connection, tenant="acme", event=_Plain('{"n": NaN}'))


class _Nameless(BaseModel):
    id: int = 1


@pytest.mark.parametrize(
    "publish_it",
    [
        lambda c: publish(c, tenant="acme", event=_Nameless()),
        lambda c: publish(c, tenant="acme", event={"event_type": "a.b"}),  # type: ignore[arg-type]
        lambda c: publish(c, tenant="acme", event=_Plain("1"), type="a.b"),
        lambda c: publish(c, tenant="acme", event=_Plain("1"), data=1),
        lambda c: publish(c, tenant="acme", event=_Plain("1"), body=b""),
        lambda c: publish(c, tenant="acme", data=1),
    ],
)
def test_what_is_no_event_is_refused(engine: Engine, publish_it: Callable[[Any], Any]) -> None:
    with engine.begin() as connection:
        with pytest.raises(PublishError, match="event"):
            publish_it(connection)
        assert connection.execute(select(t.events)).all() == []


def test_models_are_put_into_the_catalogue(engine: Engine) -> None:
    class Later(InvoicePaid):
        event_type: ClassVar[str] = "invoice.late"

    with engine.begin() as connection:
        assert register_event_types(connection, [InvoicePaid, Later], now=NOON) == [
            "invoice.paid",
            "invoice.late",
        ]
        row = connection.execute(
            select(t.event_types).where(t.event_types.c.name == "invoice.paid")
        ).one()
        assert row.description == "An invoice was paid in full.\n\nNot a part of it."
        assert row.schema == InvoicePaid.model_json_schema(mode="serialization")
        assert "customerName" in row.schema["properties"]
        assert row.validation == "off"
        # A repeat changes nothing; what operators chose stays.
        assert register_event_types(connection, [InvoicePaid, Later], now=NOON) == []
        chosen = {"validation": "warn", "example": {"id": 1}, "description": "old"}
        connection.execute(
            t.event_types.update().where(t.event_types.c.name == "invoice.paid").values(chosen)
        )
        at = NOON + timedelta(days=1)
        assert register_event_types(connection, [InvoicePaid, Later], now=at) == ["invoice.paid"]
        row = connection.execute(
            select(t.event_types).where(t.event_types.c.name == "invoice.paid")
        ).one()
        assert (row.validation, row.example, row.updated_at) == ("warn", {"id": 1}, at)
        assert row.description.startswith("An invoice")
        assert register_event_types(connection, []) == []


def test_processes_that_register_at_once_wait_for_each_other(engine: Engine) -> None:
    class Later(InvoicePaid):
        event_type: ClassVar[str] = "invoice.late"

    def register(models: list[type]) -> list[str]:
        with engine.begin() as connection:
            together.wait()
            return register_event_types(connection, models)

    # SQLite lets one transaction begin at a time.
    together = Barrier(2 if engine.dialect.name == "postgresql" else 1, timeout=30)
    with ThreadPoolExecutor(2) as pool:
        for _ in range(10):
            changed = [*pool.map(register, ([InvoicePaid, Later], [Later, InvoicePaid]))]
            assert sorted(name for names in changed for name in names) == [
                "invoice.late",
                "invoice.paid",
            ]
            with engine.begin() as connection:
                connection.execute(t.event_types.delete())


def test_models_that_can_not_be_registered(engine: Engine) -> None:
    with engine.begin() as connection:
        for models in ([_Nameless], [_Plain], [InvoicePaid, InvoicePaid]):
            with pytest.raises(PublishError):
                register_event_types(connection, models)
        assert connection.execute(select(t.event_types)).all() == []


def test_the_schema_is_that_of_what_is_sent(engine: Engine) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    event = InvoicePaid(id=7, total=Decimal("1.10"), customer="A")
    with engine.begin() as connection:
        register_event_types(connection, [InvoicePaid])
        publish(connection, tenant="acme", event=event)
        schema = connection.execute(select(t.event_types.c.schema)).scalar_one()
        body = connection.execute(select(t.events.c.body)).scalar_one()
    jsonschema.validate(json.loads(body)["data"], schema)
