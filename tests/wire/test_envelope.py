"""The envelope: exact bytes, and what is refused at publish."""

# ruff: noqa: DTZ001, RUF001  (naive datetimes and look-alike digits are the bad input here)

import contextlib
import json
import uuid
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum, StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire import RawJson
from wire.envelope import (
    check_event_type,
    check_size,
    encode_event,
    encode_json,
    format_timestamp,
    parse_timestamp,
)
from wire.errors import EnvelopeError, EnvelopeTooLargeError, SurehookError, WireError

NOW = datetime(2026, 11, 29, 10, 0, 0, tzinfo=UTC)
HEAD = b'{"id":"evt_1","type":"invoice.paid","timestamp":"2026-11-29T10:00:00Z","data":'


def encoded(data):
    body = encode_event("evt_1", "invoice.paid", NOW, data)
    assert body.startswith(HEAD)
    assert body.endswith(b"}")
    return body[len(HEAD) : -1]


def test_the_envelope_is_these_bytes():
    assert encode_event("evt_1", "invoice.paid", NOW, {"b": 1, "a": [True, None, "é"]}) == (
        HEAD + '{"b":1,"a":[true,null,"é"]}}'.encode()
    )


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"n": 1.0, "s": "é/<&"}, '{"n":1.0,"s":"é/<&"}'),  # A02
        ({"k": "a=b&c<d>"}, '{"k":"a=b&c<d>"}'),  # A04
        ({"tier": "🚀"}, '{"tier":"🚀"}'),  # A05
        ({"tel": "\u2028\u2028555"}, '{"tel":"\u2028\u2028555"}'),  # A06
        ({"weight": 64.0}, '{"weight":64.0}'),  # A08
        ({"hello": 10002318}, '{"hello":10002318}'),  # B01
        ({"id": 8202522731445525542}, '{"id":8202522731445525542}'),  # B02
        ({"n": 10**4000}, '{"n":1' + "0" * 4000 + "}"),
        ({"s": "a\x00b"}, '{"s":"a\\u0000b"}'),  # B07
        ({"s": '"\\\n\t\x1f\x7f'}, '{"s":"\\"\\\\\\n\\t\\u001f\x7f"}'),
        ({}, "{}"),
        ([], "[]"),
        ("", '""'),
        (None, "null"),
        (False, "false"),
        ((1, (2,)), "[1,[2]]"),
        (IntEnum("Size", {"ONE": 1}).ONE, "1"),
        (StrEnum("Word", {"A": "x"}).A, '"x"'),
    ],
)
def test_a02_a04_a05_a06_a08_b01_b02_b07_values_are_spelt_exactly(data, expected):
    assert encoded(data) == expected.encode()


def test_a13_key_order_is_kept_and_not_sorted():
    assert encoded({"z": 1, "a": 2}) == b'{"z":1,"a":2}'
    assert encoded({"a": 2, "z": 1}) == b'{"a":2,"z":1}'


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_what_is_encoded_reads_back_equal_and_is_valid_raw_json(data):
    body = encode_event("evt_1", "a.b", NOW, data)
    assert json.loads(body)["data"] == data
    assert RawJson(body).content == body


LOOP: list = []
LOOP.append({"again": LOOP})
SHARED = [1]


def nested(depth):
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ({"h": Decimal("1.5")}, "data.h: Decimal"),
        ({"a": [0, {"d": date(2020, 1, 1)}]}, "data.a[1].d: date"),
        ({"a": NOW}, "data.a: datetime"),
        ({"a b": uuid.uuid4()}, "data['a b']: UUID"),
        ({"a": b"x"}, "data.a: bytes"),
        ({"a": {1}}, "data.a: set"),
        (object(), "data: object"),
        ({"a": float("nan")}, "data.a: nan"),
        ([float("inf")], "data[0]: inf"),
        ([[-float("inf")]], "data[0][0]: -inf"),
        ({"s": ["\ud83d"]}, "data.s[0]: contains a lone surrogate"),
        ({"\udc00": 1}, "data: a key: contains a lone surrogate"),
        ({"a": {1: 2}}, "data.a: a key is int"),
        ({None: 1}, "data: a key is NoneType"),
        ({1.5: 1}, "data: a key is float"),
        ({True: 1}, "data: a key is bool"),
        ({"n": 10**4300}, "data.n: an integer of over 4300 digits"),
        (LOOP, "data[0].again: contains itself"),
        (nested(101), "nested more than 100 deep"),
        (nested(5000), "nested more than 100 deep"),
    ],
)
def test_b04_b05_b09_what_cannot_travel_is_refused_at_publish_naming_its_path(data, path):
    with pytest.raises(EnvelopeError) as caught:
        encoded(data)
    assert path in str(caught.value)
    assert str(caught.value).isprintable()


def test_depth_100_and_shared_parts_are_fine():
    assert encoded(nested(100)) == b"[" * 100 + b"1" + b"]" * 100
    assert encoded([SHARED, SHARED]) == b"[[1],[1]]"


@pytest.mark.parametrize("id_", [None, 5, "evt_\ud800"])
def test_an_unusable_id_is_refused(id_):
    with pytest.raises(EnvelopeError, match=r"^id:"):
        encode_event(id_, "a", NOW, {})


@pytest.mark.parametrize("name", ["a", "invoice.paid", "a-b.C_d.9", "x" * 128])
def test_event_types_are_dotted_names(name):
    assert check_event_type(name) == name


@pytest.mark.parametrize(
    "name",
    [
        None,
        5,
        b"a",
        "",
        ".",
        "a.",
        ".a",
        "a..b",
        "a b",
        "a\n",
        "é",
        "a/b",
        "*",
        "a.*",
        "x" * 129,
        "a\r\nX: 1",
        'a"b',
        "١",
    ],
)
def test_other_event_types_are_refused(name):
    with pytest.raises(EnvelopeError, match=r"^type:"):
        check_event_type(name)
    with pytest.raises(EnvelopeError, match=r"^type:"):
        encode_event("evt_1", name, NOW, {})


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (NOW, "2026-11-29T10:00:00Z"),
        (NOW.replace(microsecond=120_000), "2026-11-29T10:00:00.120000Z"),
        (
            datetime(2026, 1, 1, 13, 30, 45, tzinfo=timezone(-timedelta(hours=8))),
            "2026-01-01T21:30:45Z",
        ),
        (datetime(1, 1, 1, tzinfo=UTC), "0001-01-01T00:00:00Z"),
    ],
)
def test_f30_timestamps_are_utc_with_a_fraction_only_if_there_is_one(moment, text):
    assert format_timestamp(moment) == text
    assert parse_timestamp(text) == moment


@given(st.datetimes(timezones=st.just(UTC)))
def test_timestamps_round_trip(moment):
    assert parse_timestamp(format_timestamp(moment)) == moment


def test_f30_timestamps_are_read_with_any_offset_into_utc():
    read = parse_timestamp("2026-01-01T13:30:45.1234567-08:00")
    assert read == datetime(2026, 1, 1, 21, 30, 45, 123_456, tzinfo=UTC)
    assert read.utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    "text",
    [
        None,
        5,
        "",
        "2026-11-29",
        "2026-11-29T10:00:00",
        "2026-11-29 10:00:00Z",
        "2026-11-29T10:00Z",
        "2026-13-01T00:00:00Z",
        "2026-02-30T00:00:00Z",
        "2026-11-29T24:00:00Z",
        "2026-11-29T10:00:60Z",
        "2026-11-29T10:00:00+24:00",
        "2026-11-29T10:00:00+01:60",
        "0001-01-01T00:00:00+10:00",
        "0000-01-01T00:00:00Z",
        " 2026-11-29T10:00:00Z",
        "2026-11-29T10:00:00Z\n",
        "２026-11-29T10:00:00Z",
        "9999-12-31T23:59:59-01:00",
        "2026-11-29T10:00:00.Z",
    ],
)
def test_other_timestamps_are_refused(text):
    with pytest.raises(EnvelopeError, match=r"^timestamp:"):
        parse_timestamp(text)


@given(st.text() | st.from_regex(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?([+-]\d\d:\d\d|Z)"))
def test_any_text_is_a_timestamp_or_the_envelope_error(text):
    with contextlib.suppress(EnvelopeError):
        assert parse_timestamp(text).utcoffset() == timedelta(0)


@pytest.mark.parametrize("moment", [datetime(2026, 1, 1), date(2026, 1, 1), "2026-01-01", None, 5])
def test_only_aware_datetimes_are_timestamps(moment):
    with pytest.raises(EnvelopeError, match=r"^timestamp:"):
        encode_event("evt_1", "a", moment, {})


def test_b12_the_limit_counts_bytes_and_is_inclusive():
    body = ("é" * 50).encode()
    assert check_size(body, 100) is body
    with pytest.raises(EnvelopeTooLargeError) as caught:
        check_size(body + b"x", 100)
    assert (caught.value.size, caught.value.limit) == (101, 100)
    assert isinstance(caught.value, EnvelopeError | WireError | SurehookError)
    assert check_size(b"x" * 256 * 1024)
    with pytest.raises(EnvelopeTooLargeError):
        check_size(b"x" * (256 * 1024 + 1))


def test_encode_json_names_the_path_it_was_given():
    with pytest.raises(EnvelopeError, match=r"^payload\.a:"):
        encode_json({"a": float("nan")}, path="payload")
