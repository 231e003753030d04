"""Retry schedules: N delays are N+1 attempts, at exactly the listed gaps."""

# ruff: noqa: RUF001  (look-alike digits are the bad input here)

import dataclasses
import itertools
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire import RetrySchedule
from wire.errors import ScheduleError
from wire.schedule import PRESETS

START = datetime(2026, 11, 29, 10, 0, 0, tzinfo=UTC)


def minutes(schedule):
    return [(moment - START) / timedelta(minutes=1) for moment in schedule.preview(START)]


def test_d01_the_default_schedule_has_six_attempts():
    schedule = RetrySchedule.parse("default")
    assert schedule == RetrySchedule.parse("1m,5m,30m,2h,6h") == PRESETS["default"]
    assert minutes(schedule) == [0, 1, 6, 36, 156, 516]
    assert schedule.max_attempts == 6
    assert schedule.horizon == timedelta(hours=8, minutes=36)
    delays = [schedule.delay_after(attempt) for attempt in range(1, 8)]
    assert delays == [*schedule.delays, None, None]


def test_the_other_presets():
    assert minutes(PRESETS["standard-webhooks"]) == pytest.approx(
        [sum([5 / 60, 5, 30, 120, 300, 600, 840, 1200, 1440][:n]) for n in range(10)]
    )
    assert PRESETS["fast"].horizon <= timedelta(seconds=10)
    assert PRESETS["fast"].max_attempts == PRESETS["default"].max_attempts


@pytest.mark.parametrize("value", ["", "  ", "[]", "[ ]", [], ()])
def test_d02_an_empty_schedule_is_one_attempt(value):
    schedule = RetrySchedule.parse(value)
    assert schedule.delays == ()
    assert (schedule.max_attempts, schedule.horizon) == (1, timedelta(0))
    assert schedule.delay_after(1) is None
    assert schedule.preview(START) == [START]
    assert RetrySchedule.parse(str(schedule)) == schedule


@pytest.mark.parametrize(
    "value", [[0, 0, 5], "[0, 0, 5]", "0,0,5s", "0s, 0ms ,5000ms", ["0", 0.0, "5s"]]
)
def test_d02_zero_delays_are_at_once(value):
    schedule = RetrySchedule.parse(value)
    assert schedule.delay_after(1) == schedule.delay_after(2) == timedelta(0)
    assert schedule.delay_after(3) == timedelta(seconds=5)
    assert str(schedule) == "0,0,5s"
    assert schedule.to_seconds() == [0, 0, 5]


def test_forms_of_the_same_schedule():
    expected = RetrySchedule((timedelta(milliseconds=1500), timedelta(days=1)))
    for value in (
        "1500ms,1d",
        "[1.5,86400]",
        [1.5, "24h"],
        expected.delays,
        expected,
        iter([1.5, 86400]),
    ):
        assert RetrySchedule.parse(value) == expected
    assert expected.to_seconds() == [1.5, 86400]
    assert str(expected) == "1500ms,1d"
    assert hash(expected) == hash(RetrySchedule.parse("1500ms,1440m"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        expected.delays = ()


DELAYS = st.integers(0, 60 * 86_400_000 // 50).map(lambda ms: timedelta(milliseconds=ms))


@given(st.lists(DELAYS, max_size=50).map(tuple).map(RetrySchedule))
def test_every_schedule_reads_back_from_its_text_and_its_seconds(schedule):
    assert RetrySchedule.parse(str(schedule)) == schedule
    assert RetrySchedule.parse(schedule.to_seconds()) == schedule
    assert RetrySchedule.parse(str(schedule.to_seconds())) == schedule
    moments = schedule.preview(START)
    assert tuple(b - a for a, b in itertools.pairwise(moments)) == schedule.delays
    assert moments[-1] - moments[0] == schedule.horizon
    assert len(moments) == schedule.max_attempts


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("-1m", "delay 1 is negative"),
        ("1m,-5s", "delay 2 is negative"),
        ([1, -1], "delay 2 is negative"),
        ([timedelta(-1)], "negative"),
        ("5", "delay 1 has no unit"),
        ("1m,5", "delay 2 has no unit"),
        ("1m,,5m", "delay 2 is empty"),
        ("1m,", "delay 2 is empty"),
        (",", "delay 1 is empty"),
        ("1x", "unit"),
        ("1 m", "unit"),
        ("1M", "unit"),
        ("m", "unit"),
        ("1.5h", "unit"),
        ("1h30m", "unit"),
        ("deflaut", "preset"),
        ("１m", "unit"),
        ("+1m", "unit"),
        ("1_0m", "unit"),
        ("nan", "unit"),
        ("[nan]", "unit"),
        ("[1", "unit"),
        ("infs", "unit"),
        ("1e3s", "unit"),
        ("1m;5m", "unit"),
        ("1m\n5m", "unit"),
        ([float("nan")], "finite"),
        ([float("inf")], "finite"),
        ([-float("inf")], "finite"),
        ([True], "not bool"),
        ([None], "not NoneType"),
        ([[1]], "not list"),
        ([b"1m"], "not bytes"),
        ([1e-4], "finer"),
        ([timedelta(microseconds=1)], "finer"),
        ("61d", "over 60 days"),
        ([10**30], "over 60 days"),
        ([1e300], "over 60 days"),
        ("999999999999d", "over 60 days"),
        ("9" * 5000 + "s", "unit"),
        ("[" + "9" * 12 + "]", "over 60 days"),
        ("31d,30d", "60 days in all"),
        ([0] * 51, "at most 50"),
        ("0," * 50 + "0", "at most 50"),
        (itertools.repeat(0), "at most 50"),
        ("0," * 10**6, "at most 50"),
        (None, "NoneType"),
        (5, "int"),
        (True, "bool"),
        (1.5, "float"),
        (b"1m", "bytes"),
        ({"1m": 1}, "dict"),
    ],
)
def test_schedules_that_can_not_be_read_say_why(value, named):
    with pytest.raises(ScheduleError, match=named):
        RetrySchedule.parse(value)


def test_sixty_days_and_fifty_delays_are_allowed():
    assert RetrySchedule.parse("60d").horizon == timedelta(days=60)
    assert RetrySchedule.parse([0] * 50).max_attempts == 51


@pytest.mark.parametrize("delays", [(5,), ("1m",), (None,)])
def test_the_constructor_takes_timedeltas(delays):
    with pytest.raises(ScheduleError, match="timedelta"):
        RetrySchedule(delays)


@pytest.mark.parametrize("attempt", [0, -1])
def test_attempts_are_numbered_from_one(attempt):
    with pytest.raises(ScheduleError, match="from 1"):
        PRESETS["default"].delay_after(attempt)


@given(
    st.text() | st.text("0123456789msdh,.[]- ") | st.lists(st.floats() | st.integers() | st.text())
)
def test_any_value_is_a_schedule_or_the_schedule_error(value):
    try:
        schedule = RetrySchedule.parse(value)
    except ScheduleError:
        return
    assert RetrySchedule.parse(str(schedule)) == schedule
