"""The conformance suite of dedup stores, for ours and for yours.

Make a class in your own tests and say how a store is made::

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def store(self):
            return MyStore(…)          # empty

The tests are asynchronous (pytest-asyncio in auto mode, or anyio's plugin) and drive stores with
either kind of client. What a store can't do for want of commands is said by class attributes, and
should be said in its documentation too.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from receiver.gate import Claimed, ClaimResult, Done, Gate, InProgress, Mismatch, Parked
from receiver.store import Store

__all__ = ["FakeClock", "StoreConformance"]

_START = 1_800_000_000.0
_ANSWER = bytes(range(256)) + b"|\r\n'\"\\ \xf0\x9f\x9a\x80"


class FakeClock:
    """A clock that moves when told to: call it for unix seconds."""

    def __init__(self, start: float = _START) -> None:
        self.now = start

    def __call__(self) -> float:
        """Unix seconds."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Move forward."""
        self.now += seconds


class StoreConformance:
    """Inherit, and provide a ``store`` fixture that gives an empty store."""

    takes_clock = True
    """Whether the store heeds the gate's clock in full. Without it, edges in time are not tested
    and takeovers are tested with short real leases."""

    counts_attempts = True
    """Whether attempts are known after a release or a crash."""

    lists_dead_letters = True
    """Whether parked messages can be listed."""

    short_lease = 0.2
    """Seconds: a lease that the store can keep, for tests in real time."""

    async def test_fifty_concurrent_claims_have_one_winner(self, store: Store) -> None:
        """The claim is atomic."""
        gate = Gate(store)
        for number in range(3):
            results = await _concurrently(gate, f"k{number}", 50)
            assert sum(isinstance(result, Claimed) for result in results) == 1
            assert sum(isinstance(result, InProgress) for result in results) == 49

    async def test_fifty_concurrent_takeovers_have_one_winner(self, store: Store) -> None:
        """A lapsed claim is taken over by one, too."""
        clock = FakeClock()
        gate = Gate(store, clock=clock if self.takes_clock else None)
        first = await _claimed(gate, "k", lease=self.short_lease)
        await self._lapse(clock)
        results = await _concurrently(gate, "k", 50)
        winners = [result for result in results if isinstance(result, Claimed)]
        assert len(winners) == 1
        assert winners[0].token != first.token
        if self.counts_attempts:
            assert winners[0].attempts == 2

    async def test_answers_while_in_progress_and_when_done(self, store: Store) -> None:
        """Work in progress says for how long; finished work gives its answer, byte for byte."""
        gate = Gate(store)
        claim = await _claimed(gate, "k", lease=30)
        waiting = await gate.claim("k")
        assert isinstance(waiting, InProgress)
        assert 0 < waiting.retry_after <= 31
        assert await gate.complete("k", claim.token, _ANSWER)
        assert await gate.claim("k") == Done(_ANSWER)

    async def test_no_answer_and_an_empty_answer_differ(self, store: Store) -> None:
        """None stays None and ``b""`` stays ``b""``."""
        gate = Gate(store)
        for key, answer in (("none", None), ("empty", b"")):
            claim = await _claimed(gate, key)
            assert await gate.complete(key, claim.token, answer)
            assert await gate.claim(key) == Done(answer)

    async def test_late_worker_is_refused(self, store: Store) -> None:
        """Once another has taken over, the first token changes nothing any more."""
        clock = FakeClock()
        gate = Gate(store, clock=clock if self.takes_clock else None)
        late = await _claimed(gate, "k", lease=self.short_lease)
        await self._lapse(clock)
        second = await _claimed(gate, "k", lease=60)
        assert not await gate.complete("k", late.token, b"late")
        assert not await gate.release("k", late.token, "late")
        assert not await gate.extend("k", late.token)
        assert isinstance(await gate.claim("k"), InProgress)
        assert await gate.complete("k", second.token, b"second")
        assert not await gate.complete("k", late.token, b"late")
        assert not await gate.release("k", late.token, "late")
        assert await gate.claim("k") == Done(b"second")

    async def test_unknown_key_and_wrong_token_change_nothing(self, store: Store) -> None:
        """A token is needed, and the right one."""
        gate = Gate(store)
        assert not await gate.complete("k", "0" * 32, b"")
        assert not await gate.release("k", "0" * 32, "error")
        assert not await gate.extend("k", "0" * 32)
        claim = await _claimed(gate, "k")
        assert not await gate.complete("k", "0" * 32)
        assert not await gate.release("k", "0" * 32)
        assert await gate.extend("k", claim.token, 90)

    async def test_complete_may_be_repeated(self, store: Store) -> None:
        """A client library that repeats a command whose answer was lost does no harm."""
        gate = Gate(store)
        claim = await _claimed(gate, "k")
        assert await gate.complete("k", claim.token, b"a")
        assert await gate.complete("k", claim.token, b"a")
        assert not await gate.release("k", claim.token, "too late")
        assert await gate.claim("k") == Done(b"a")

    async def test_release_frees_the_key(self, store: Store) -> None:
        """A failed handler's message is claimed by the next delivery, and counted."""
        gate = Gate(store)
        first = await _claimed(gate, "k")
        assert await gate.release("k", first.token, ValueError("no\x00 \ud83d"))
        second = await _claimed(gate, "k")
        assert not await gate.complete("k", first.token)
        if self.counts_attempts:
            assert (first.attempts, second.attempts) == (1, 2)
            assert await gate.release("k", second.token)
            assert (await _claimed(gate, "k")).attempts == 2

    async def test_same_key_other_body_is_a_mismatch(self, store: Store) -> None:
        """In progress and when done; without a fingerprint nothing is compared."""
        gate = Gate(store)
        claim = await _claimed(gate, "k", fingerprint="aa")
        assert await gate.claim("k", "bb") == Mismatch("aa", done=False)
        assert isinstance(await gate.claim("k", "aa"), InProgress)
        assert isinstance(await gate.claim("k"), InProgress)
        assert await gate.complete("k", claim.token, b"x")
        assert await gate.claim("k", "bb") == Mismatch("aa", done=True)
        assert await gate.claim("k", "aa") == Done(b"x")

    async def test_keys_are_told_apart_exactly(self, store: Store) -> None:
        """By case, by blanks, by length, in any script."""
        gate = Gate(store)
        keys = [
            "a",
            "A",
            "a ",
            " a",
            "ä",
            "a\u0308",
            "x" * 255,
            "x" * 256,
            "x" * 5000,
            "k\x00",
            "k",
        ]
        keys += ["a'b", "a%b", "a:b", "\ud83d", "a|b", "{a}"]
        for key in keys:
            assert isinstance(await gate.claim(key), Claimed), repr(key)
        for key in keys:
            assert isinstance(await gate.claim(key), InProgress), repr(key)

    async def test_memory_ends_at_the_ttl(self, store: Store) -> None:
        """Done until one millisecond before the ttl; a new message from the ttl on."""
        if not self.takes_clock:
            return
        clock = FakeClock()
        gate = Gate(store, clock=clock, ttl=604_800)
        claim = await _claimed(gate, "k", fingerprint="aa")
        assert await gate.complete("k", claim.token, b"x")
        clock.advance(604_799.999)
        assert await gate.claim("k", "aa") == Done(b"x")
        clock.advance(0.001)
        assert (await _claimed(gate, "k", fingerprint="bb")).attempts == 1

    async def test_lease_ends_on_the_millisecond(self, store: Store) -> None:
        """In progress until one millisecond before the end; extended from the moment of asking."""
        if not self.takes_clock:
            return
        clock = FakeClock()
        gate = Gate(store, clock=clock)
        claim = await _claimed(gate, "k", lease=60)
        clock.advance(59.999)
        assert await gate.claim("k") == InProgress(0.001)
        assert await gate.extend("k", claim.token, 60)
        clock.advance(59.999)
        assert await gate.claim("k") == InProgress(0.001)
        clock.advance(0.001)
        assert await gate.complete("k", claim.token), "late, but nobody has taken over"
        assert await gate.claim("k") == Done(None)

    async def test_waiter_takes_over_from_a_dead_holder(self, store: Store) -> None:
        """Whoever waits gets the claim when the holder's lease lapses, or the answer."""
        gate = Gate(store)
        await _claimed(gate, "k", lease=self.short_lease)
        taken = await gate.claim("k", wait=30)
        assert isinstance(taken, Claimed)
        waiting = asyncio.ensure_future(_wait_for(gate, "k"))
        assert await gate.complete("k", taken.token, b"x")
        assert await waiting == Done(b"x")

    async def test_parked_after_max_failures_and_revived(self, store: Store) -> None:
        """The n-th failure parks; a parked message is listed, refused, and can be released."""
        gate = Gate(store, max_failures=2)
        for _ in range(2):
            claim = await _claimed(gate, "k", fingerprint="aa")
            assert await gate.release("k", claim.token, "boom | \u00e9\n")
        assert await gate.claim("k", "aa") == Parked(2, "boom | \u00e9\n")
        assert not await gate.complete("k", claim.token)
        if self.lists_dead_letters:
            (letter,) = await gate.dead_letters()
            assert (letter.key, letter.failures, letter.error) == ("k", 2, "boom | \u00e9\n")
            assert letter.parked_at.utcoffset() is not None
        assert await gate.revive("k")
        assert not await gate.revive("k")
        if self.lists_dead_letters:
            assert await gate.dead_letters() == []
        assert (await _claimed(gate, "k")).attempts == 1

    async def test_crashes_count_as_failures(self, store: Store) -> None:
        """A message that kills its worker is parked instead of killing every worker."""
        if not (self.counts_attempts and self.takes_clock):
            return
        clock = FakeClock()
        gate = Gate(store, clock=clock, max_failures=3)
        for attempt in (1, 2, 3):
            assert (await _claimed(gate, "k", lease=60)).attempts == attempt
            clock.advance(60)
        assert await gate.claim("k") == Parked(3, None)
        clock.advance(365 * 86_400)
        assert await gate.claim("k") == Parked(3, None), "never forgotten unseen"
        assert [letter.key for letter in await gate.dead_letters()] == ["k"]

    async def test_purge_deletes_only_what_is_over(self, store: Store) -> None:
        """What is remembered is not deleted, and what is over does not come back."""
        clock = FakeClock()
        gate = Gate(store, clock=clock if self.takes_clock else None, ttl=1000)
        done = await _claimed(gate, "done")
        await gate.complete("done", done.token, b"x")
        await _claimed(gate, "live", lease=5000)
        await gate.purge()
        assert await gate.claim("done") == Done(b"x")
        clock.advance(1000)
        await gate.purge()
        assert isinstance(await gate.claim("live"), InProgress)

    async def _lapse(self, clock: FakeClock) -> None:
        if self.takes_clock:
            clock.advance(self.short_lease)
        else:
            await asyncio.sleep(self.short_lease + 0.1)


async def _claimed(
    gate: Gate, key: str, *, fingerprint: str = "", lease: float | None = None
) -> Claimed:
    result = await gate.claim(key, fingerprint, lease)
    assert isinstance(result, Claimed), result
    return result


async def _wait_for(gate: Gate, key: str) -> ClaimResult:
    return await gate.claim(key, wait=30)


async def _concurrently(gate: Gate, key: str, number: int) -> Sequence[ClaimResult]:
    if not gate.store.blocking:
        return await asyncio.gather(*(_claim(gate, key) for _ in range(number)))
    # Threads of its own: the loop's default executor has only a few.
    with ThreadPoolExecutor(number) as threads:
        barrier = threading.Barrier(number)

        def one() -> ClaimResult:
            call = gate.claim(key)
            barrier.wait(60)
            return call.run()

        loop = asyncio.get_running_loop()
        return await asyncio.gather(*(loop.run_in_executor(threads, one) for _ in range(number)))


async def _claim(gate: Gate, key: str) -> ClaimResult:
    return await gate.claim(key)
