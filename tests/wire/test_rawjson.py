"""JSON that is given as text travels byte for byte."""

# ruff: noqa: RUF001  (look-alike digits are the bad input here)

import json
import sys
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire import RawJson
from wire.envelope import encode_event
from wire.errors import EnvelopeError
from wire.rawjson import raw_members

NOW = datetime(2026, 11, 29, 10, 0, 0, tzinfo=UTC)
KEPT = [
    '{"z":1,"a":2,"a":3,"n":1.10}',
    '{"a": 1,"s":"caf\\u00e9"}',
    '{"weight":64.0}',
    "1E2",
    "0.1e-7",
    "1e400",
    "-0",
    '{"s":"a\\u0000b"}',
    '{"tel":"\\u2028\u2028555"}',
    '{"k":"\\u003d\\/"}',
    '"\\ud83d\\ude00"',
    '"\\uD83D\\uDE00\\ud83d\\ude00"',
    '"\\\\ud83d"',
    '"\\\\\\\\ud83d"',
    '"\U0001f680"',
    " \t\r\n[ 1 , 2 ]\n",
    "null",
    '""',
    "9" * 4300,
    "-" + "9" * 4300,
    "[" * 100 + "]" * 100,
    '"' + "[" * 500 + '"',
    '{"' + '\\"{' * 200 + '":1}',
    "8202522731445525542",
]


@pytest.mark.parametrize("text", KEPT)
def test_a06_a12_b02_b07_valid_text_is_inserted_verbatim(text):
    body = encode_event("evt_1", "a", NOW, RawJson(text))
    assert body.endswith(b'"data":' + text.encode() + b"}")
    assert RawJson(text.encode()) == RawJson(bytearray(text.encode())) == RawJson(text)


@pytest.mark.parametrize(
    "content",
    [
        "",
        " ",
        "{",
        "[1,]",
        "{'a':1}",
        "01",
        "1.",
        ".5",
        "+1",
        "NaN",
        "[Infinity]",
        '{"a":-Infinity}',
        '"\\ud83d"',
        '"\\ude00"',
        '"\\ud83d x \\ude00"',
        '"\\ud83d\\n\\ude00"',
        '"\\ud83d\\ud83d\\ude00"',
        '"\\ude00\\ud83d"',
        '{"\\uD800":1}',
        '{"a":"\\udfff","a":1}',
        '"\\\\\\ud83d"',
        '"a\x00b"',
        '"a\nb"',
        "\x00",
        "1\x00",
        "\ufeff1",
        "１",
        "1\u00a0",
        '"\ud83d"',
        "[1] [2]",
        b"\xff",
        b'"\xed\xa0\xbd"',
        b'"\xc0\xaf"',
        "1".encode("utf-16"),
        b"\xef\xbb\xbf1",
        "9" * 4301,
        "-" + "9" * 4301,
        "[" * 101 + "]" * 101,
        "[" * 100_000,
        "[" * 100_000 + "]" * 100_000,
        '{"a":' * 200 + "1" + "}" * 200,
        '"' + '\\"' * 100_000,
        None,
        5,
        {"a": 1},
        ["x"],
    ],
)
def test_b05_b09_other_text_is_refused(content):
    with pytest.raises(EnvelopeError):
        RawJson(content)


@given(st.binary(max_size=40) | st.text(alphabet='\\ud83{}[]",:0e.-DCNa ', max_size=40))
def test_any_content_is_json_for_strict_readers_or_the_envelope_error(content):
    try:
        kept = RawJson(content).content
    except EnvelopeError:
        return
    assert kept == (content.encode() if isinstance(content, str) else content)
    json.dumps(json.loads(kept), ensure_ascii=False).encode("utf-8")


@pytest.mark.parametrize("digits", [640, 5000, 0])
def test_a_host_with_another_digit_limit_changes_no_error(digits):
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(digits)
    try:
        with pytest.raises(EnvelopeError):
            RawJson("9" * 4301)
    finally:
        sys.set_int_max_str_digits(before)


def test_repr_does_not_show_the_content():
    assert "hush" not in repr(RawJson('"hush"'))
    assert hash(RawJson("1")) == hash(RawJson(b"1"))
    assert RawJson("1") != RawJson("1.0")
    assert RawJson("1") != "1"


def test_a12_b02_raw_members_hands_on_each_value_as_written():
    body = (
        b' { "tenant" : "acme" ,"data":{"z":1, "a":2,"a":3,"n":1.10,"s":"}\\"{"} , "n":[1,{}]\n} '
    )
    members = raw_members(body)
    assert {name: raw.content for name, raw in members.items()} == {
        "tenant": b'"acme"',
        "data": b'{"z":1, "a":2,"a":3,"n":1.10,"s":"}\\"{"}',
        "n": b"[1,{}]",
    }
    assert raw_members("{}") == {}
    assert raw_members('{"\\u0061":1}') == {"a": RawJson("1")}


@pytest.mark.parametrize(
    "body", ["[]", "1", '{"a":1,"a":2}', '{"a":1,"\\u0061":2}', "{", b"\xff", '{"a":NaN}']
)
def test_raw_members_refuses_anything_but_one_object_with_distinct_members(body):
    with pytest.raises(EnvelopeError):
        raw_members(body)


@given(st.dictionaries(st.text(), st.lists(st.floats(allow_nan=False) | st.text()), max_size=5))
def test_raw_members_agrees_with_a_full_parse(value):
    text = json.dumps(value, indent=1)
    if "Infinity" in text and any(float("inf") in v or -float("inf") in v for v in value.values()):
        return
    members = raw_members(text)
    assert {name: json.loads(raw.content) for name, raw in members.items()} == value
