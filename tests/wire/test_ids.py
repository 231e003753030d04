"""Ids: form, order, threads, fork."""

# ruff: noqa: DTZ001, RUF001  (naive datetimes and look-alike digits are the bad input here)

import os
import threading
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ulid import ULID

from wire import ids
from wire.errors import IdError

NOON = datetime(2026, 11, 29, 12, 0, 0, 123_000, tzinfo=UTC)
MOMENTS = st.datetimes(
    min_value=datetime(1970, 1, 1), max_value=datetime(9999, 12, 31), timezones=st.just(UTC)
)


@given(MOMENTS)
def test_an_id_holds_its_moment_as_python_ulid_reads_it(moment):
    new = ids.new_id(ids.EVENT, now=moment)
    assert ids.parse_id(new, "evt") == new
    expected = moment - timedelta(microseconds=moment.microsecond % 1000)
    assert ids.id_time(new) == expected
    ulid = ULID.from_str(new.removeprefix("evt_"))
    assert str(ulid) == new.removeprefix("evt_")
    assert ulid.milliseconds == (expected - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(
        milliseconds=1
    )


def test_ids_of_one_process_increase_and_differ():
    made = [ids.new_id(ids.DELIVERY) for _ in range(20_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_ids_of_one_given_millisecond_increase_also_when_moments_alternate():
    later = NOON + timedelta(milliseconds=1)
    made = [ids.new_id("evt", now=moment) for _ in range(500) for moment in (NOON, later)]
    assert made[::2] == sorted(set(made[::2]))
    assert made[1::2] == sorted(set(made[1::2]))
    assert max(made[::2]) < min(made[1::2])


class Steps:
    """A wall clock that stands where the test sets it."""

    def __init__(self, ms: int) -> None:
        self.ms = ms

    def time_ns(self) -> int:
        return self.ms * 1_000_000 + 999_999


@pytest.fixture
def steps(monkeypatch):
    """A fresh generator of ids, on a clock of its own."""
    clock = Steps(1_900_000_000_000)
    monkeypatch.setattr(ids, "_generator", ids._Generator())
    monkeypatch.setattr(ids, "time", clock)
    return clock


def milliseconds(text):
    return (ids.id_time(text) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


@pytest.mark.parametrize("back", [1, 128, 1_000, 2_000])
def test_ids_increase_while_the_clock_is_set_back_a_little(steps, back):
    start = steps.ms
    made = [ids.new_id("evt")]
    for ms in (start - back, start - back // 2, start, start + 1):
        steps.ms = ms
        made += [ids.new_id("evt") for _ in range(3)]
    assert made == sorted(set(made))
    assert [milliseconds(text) for text in made] == [start] * 10 + [start + 1] * 3


def test_small_steps_back_do_not_add_up(steps):
    start = steps.ms
    made = [ids.new_id("evt")]
    for _ in range(4):
        steps.ms -= 1_000
        made.append(ids.new_id("evt"))
    times = [milliseconds(text) for text in made]
    # Never more than two seconds ahead of the clock, however it got there.
    assert times == [start, start, start, start - 3_000, start - 3_000]
    assert made[:3] == sorted(set(made[:3]))
    assert made[3:] == sorted(set(made[3:]))


@pytest.mark.parametrize("ahead", [2_001, 3_600_000, 10 * 365 * 86_400_000])
def test_f36_ids_follow_a_clock_that_was_far_ahead_and_is_set_right(steps, ahead):
    right = steps.ms
    before = [ids.new_id("evt") for _ in range(3)]
    steps.ms = right + ahead
    wrong = [ids.new_id("evt") for _ in range(3)]
    assert {milliseconds(text) for text in wrong} == {right + ahead}
    steps.ms = right
    after = [ids.new_id("evt") for _ in range(1_000)]
    assert {milliseconds(text) for text in after} == {right}
    assert after == sorted(set(after))
    # The same millisecond a second time: unique all the same.
    assert not {*before, *wrong} & {*after}
    steps.ms = right + 1
    assert ids.new_id("evt") > after[-1]


def test_f36_the_same_ids_never_come_twice_from_a_clock_that_goes_to_and_fro(steps):
    start = steps.ms
    made = []
    for round_ in range(200):
        steps.ms = start + (round_ % 2) * 3_600_000
        made += [ids.new_id("evt") for _ in range(20)]
        assert milliseconds(made[-1]) == steps.ms
    assert len(set(made)) == len(made)


def test_given_moments_do_not_move_the_clock_of_other_ids():
    ids.new_id("evt", now=datetime(2500, 1, 1, tzinfo=UTC))
    assert ids.id_time(ids.new_id("evt")) < datetime(2499, 1, 1, tzinfo=UTC)


def test_memory_of_given_moments_is_bounded():
    for second in range(500):
        ids.new_id("evt", now=NOON + timedelta(seconds=second))
    assert len(ids._generator._given) <= 64


def test_ids_are_unique_and_increase_in_each_of_many_threads():
    made: list[list[str]] = [[] for _ in range(8)]
    start = threading.Barrier(8)

    def make(mine: list[str]) -> None:
        start.wait(10)
        mine.extend(ids.new_id("evt") for _ in range(2_000))

    threads = [threading.Thread(target=make, args=(mine,)) for mine in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert all(len(mine) == 2_000 and mine == sorted(mine) for mine in made)
    assert len({one for mine in made for one in mine}) == 16_000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("now", [None, NOON])
def test_a_forked_child_makes_other_ids_even_if_the_lock_was_held(now):
    ids.new_id("evt", now=now)
    read, write = os.pipe()
    with ids._generator._lock:
        child = os.fork()
        if not child:
            # The inherited lock is held for ever; a child that waited for it would never answer.
            text = "\n".join(ids.new_id("evt", now=now) for _ in range(200))
            os.write(write, text.encode())
            os._exit(0)
    os.close(write)
    ours = [ids.new_id("evt", now=now) for _ in range(200)]
    with os.fdopen(read) as pipe:
        theirs = pipe.read().split("\n")
    os.waitpid(child, 0)
    assert len(theirs) == 200
    assert not set(ours) & set(theirs)
    assert theirs == sorted(theirs)


@pytest.mark.parametrize(
    "text",
    [
        None,
        5,
        b"evt_01K8A0000000000000000000ZZ",
        "",
        "evt",
        "evt_",
        "dlv_01K8A0000000000000000000ZZ",
        "evt_01K8A0000000000000000000Z",
        "evt_01K8A0000000000000000000ZZZ",
        "evt_01k8a0000000000000000000zz",
        "evt_01K8A0000000000000000000ZI",
        "evt_01K8A0000000000000000000ZL",
        "evt_01K8A0000000000000000000ZO",
        "evt_01K8A0000000000000000000ZU",
        "evt_81K8A0000000000000000000ZZ",
        "evt_01K8A0000000000000000000Z\n",
        "evt_01K8A0000000000000000000ZZ\n",
        " evt_01K8A0000000000000000000ZZ",
        "evt_01K8A0000000000000000000Z１",
        "evt_\x00" + "0" * 25,
        "EVT_01K8A0000000000000000000ZZ",
        "evt-01K8A0000000000000000000ZZ",
    ],
)
def test_only_strict_ids_are_read(text):
    with pytest.raises(IdError):
        ids.parse_id(text, "evt")


@given(st.text() | st.binary() | st.none() | st.integers())
def test_any_text_is_an_id_or_an_id_error(text):
    with pytest.raises(IdError):
        ids.parse_id(text, "evt")
    with pytest.raises(IdError):
        ids.id_time(text)


@pytest.mark.parametrize("prefix", ["", "E", "a_b", "é", "a" * 17, "1a", "ev\n", None])
def test_prefixes_are_checked(prefix):
    for call in (ids.new_id, lambda p: ids.first_id(p, NOON), lambda p: ids.parse_id("x", p)):
        with pytest.raises(IdError):
            call(prefix)


def test_moments_are_aware_and_not_before_1970():
    with pytest.raises(IdError, match="time zone"):
        ids.new_id("evt", now=datetime(2026, 1, 1))
    with pytest.raises(IdError, match="time zone"):
        ids.first_id("evt", datetime(2026, 1, 1))
    with pytest.raises(IdError, match="1970"):
        ids.new_id("evt", now=datetime(1969, 12, 31, tzinfo=UTC))


def test_an_id_after_the_year_9999_has_no_time():
    with pytest.raises(IdError, match="9999"):
        ids.id_time("evt_" + "7" + "Z" * 25)


@given(MOMENTS)
def test_first_id_makes_a_time_filter_a_range_of_ids(moment):
    first = ids.first_id("evt", moment)
    made = ids.new_id("evt", now=moment)
    assert ids.parse_id(first, "evt") == first
    assert first <= made < ids.first_id("evt", moment + timedelta(milliseconds=1))


def test_first_id_takes_any_aware_moment():
    assert ids.first_id("evt", datetime(1, 1, 1, tzinfo=UTC)) == "evt_" + "0" * 26
    assert ids.first_id("evt", datetime.max.replace(tzinfo=UTC)) > ids.new_id("evt")
