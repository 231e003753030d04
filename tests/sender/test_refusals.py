"""What can't be published: one family of errors, at publish, and nothing stored."""

from __future__ import annotations

import uuid
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine

from sender import NewEvent, publish, publish_many
from tests.sender.conftest import AddEndpoint
from tests.support.tables import stored
from wire import RawJson
from wire.envelope import DEFAULT_SIZE_LIMIT
from wire.errors import EnvelopeTooLargeError, SurehookError

GOOD: dict[str, Any] = {"tenant": "acme", "type": "a.b", "data": 1}
RING: list[Any] = []
RING.append(RING)

BAD: dict[str, dict[str, Any]] = {
    "b04_decimal": {"data": {"h": Decimal("1.5")}},
    "b04_date": {"data": {"d": date(2020, 1, 1)}},
    "b04_uuid": {"data": uuid.UUID(int=1)},
    "b04_bytes": {"data": b"x"},
    "b04_set": {"data": {1}},
    "b04_int_key": {"data": {1: 2}},
    "b04_object": {"data": object()},
    "b05_nan": {"data": {"a": float("nan")}},
    "b05_inf": {"data": [float("-inf")]},
    "b07_lone_surrogate": {"data": {"s": "\ud83d"}},
    "b07_lone_surrogate_key": {"data": {"\udc00": 1}},
    "circular": {"data": RING},
    "missing_data": {"data": None, "body": None, "drop": "data"},
    "both": {"body": b"x"},
    "body_text": {"body": "x", "drop": "data"},
    "body_bytearray": {"body": bytearray(b"x"), "drop": "data"},
    "tenant_empty": {"tenant": ""},
    "tenant_long": {"tenant": "x" * 257},
    "tenant_nul": {"tenant": "a\x00b"},
    "tenant_surrogate": {"tenant": "a\ud800"},
    "tenant_newline": {"tenant": "a\n"},
    "tenant_none": {"tenant": None},
    "tenant_int": {"tenant": 7},
    "tenant_bytes": {"tenant": b"acme"},
    "type_empty": {"type": ""},
    "type_dots": {"type": "a..b"},
    "type_quote": {"type": 'a"b'},
    "type_nul": {"type": "a\x00"},
    "type_none": {"type": None},
    "type_list": {"type": ["a"]},
    "key_empty": {"idempotency_key": ""},
    "key_long": {"idempotency_key": "x" * 257},
    "key_nul": {"idempotency_key": "a\x00"},
    "key_surrogate": {"idempotency_key": "\udfff"},
    "key_int": {"idempotency_key": 5},
    "key_bytes": {"idempotency_key": b"k"},
    "content_type_quoted": {"content_type": 'application/json; charset="utf-8"'},
    "content_type_newline": {"content_type": "text/plain\r\nX-A: b"},
    "content_type_none": {"content_type": None},
    "trace_int": {"trace_context": 5},
    "trace_nul": {"trace_context": "00-\x00"},
    "trace_surrogate": {"trace_context": "\ud800"},
    "trace_long": {"trace_context": "x" * 2000},
    "trace_newline": {"trace_context": "00-a\r\nb"},
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD.keys())
def test_bad_input_is_refused_at_publish(engine: Engine, case: dict[str, Any]) -> None:
    values = {**GOOD, **case}
    values.pop(values.pop("drop", ""), None)
    with engine.begin() as connection:
        with pytest.raises(SurehookError) as caught:
            publish(connection, **values)
        # The second of a batch: nothing of the first is stored either.
        with pytest.raises(SurehookError) as second:
            publish_many(connection, [NewEvent(**GOOD), NewEvent(**values)])
    assert str(caught.value)
    assert "position 1" in second.value.__notes__[0]
    with engine.begin() as connection:
        assert stored(connection) == (0, 0, 0)


def test_a_batch_of_something_else_is_refused(engine: Engine) -> None:
    with engine.begin() as connection:
        for batch in ([GOOD], [None], ["x"]):
            with pytest.raises(SurehookError, match="NewEvent"):
                publish_many(connection, batch)  # type: ignore[arg-type]
        assert stored(connection) == (0, 0, 0)


@pytest.mark.parametrize("over", [-1, 0, 1])
@pytest.mark.parametrize("kind", ["data", "body", "raw"])
def test_b12_the_limit_is_in_bytes(engine: Engine, kind: str, over: int) -> None:
    """Bytes of the body as sent, the envelope included; an é is two of them."""
    limit = 2000
    envelope = len(
        b'{"id":"evt_01KABCDEFGHJKMNPQRSTVWXYZ0","type":"a.b",'
        b'"timestamp":"2026-11-29T10:00:00.123000Z","data":""}'
    )
    size = limit + over
    from datetime import UTC, datetime

    now = datetime(2026, 11, 29, 10, 0, 0, 123_000, tzinfo=UTC)
    if kind == "body":
        content: dict[str, Any] = {"body": "é".encode() * (size // 2) + b"x" * (size % 2)}
    else:
        letters = size - envelope
        value = "é" * (letters // 2) + "x" * (letters % 2)
        content = {"data": value if kind == "data" else RawJson(f'"{value}"')}
    event = {"tenant": "acme", "type": "a.b", **content}
    with engine.begin() as connection:
        if over > 0:
            with pytest.raises(EnvelopeTooLargeError, match=str(limit)) as caught:
                publish(connection, **event, max_body_bytes=limit, now=now)
            assert (caught.value.size, caught.value.limit) == (size, limit)
        else:
            publish(connection, **event, max_body_bytes=limit, now=now)
        assert stored(connection)[0] == (over <= 0)


def test_b12_the_default_limit_is_256_kib(engine: Engine) -> None:
    with engine.begin() as connection:
        publish(connection, tenant="acme", type="a.b", body=b"x" * DEFAULT_SIZE_LIMIT)
        with pytest.raises(EnvelopeTooLargeError):
            publish(connection, tenant="acme", type="a.b", body=b"x" * (DEFAULT_SIZE_LIMIT + 1))
    assert DEFAULT_SIZE_LIMIT == 262_144


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.binary()
    | st.decimals(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
    max_leaves=10,
)


@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    data=ANYTHING,
    tenant=st.text(st.characters(), max_size=20) | ANYTHING,
    type_=st.sampled_from(["a.b", "invoice.paid"]) | ANYTHING,
    key=st.none() | ANYTHING,
    trace=st.none() | ANYTHING,
)
def test_anything_is_stored_or_refused(
    engine: Engine, data: Any, tenant: Any, type_: Any, key: Any, trace: Any
) -> None:
    with engine.connect() as connection:
        try:
            publish(
                connection,
                tenant=tenant,
                type=type_,
                data=data,
                idempotency_key=key,
                trace_context=trace,
            )
        except SurehookError:
            assert stored(connection) == (0, 0, 0)
        else:
            assert stored(connection)[0] == 1
        connection.rollback()


def test_good_input_at_the_edges_is_stored(engine: Engine, add_endpoint: AddEndpoint) -> None:
    add_endpoint(tenant_id="ü " + "x" * 254)
    with engine.begin() as connection:
        published = publish(
            connection,
            tenant="ü " + "x" * 254,
            type="A-b_c.9",
            data=None,
            idempotency_key="k" * 256,
            trace_context="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        )
    assert len(published.delivery_ids) == 1
