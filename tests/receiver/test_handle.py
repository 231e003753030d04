"""From request to answer, synchronous and asynchronous: one flow."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from receiver.answer import Answer
from receiver.drive import is_async
from receiver.errors import ConfigurationError
from receiver.gate import Claimed, Gate
from receiver.handle import Receiver
from receiver.memory import MemoryStore
from receiver.message import Message
from receiver.request import Request
from receiver.testing import FakeClock
from receiver.verify import Verifier
from tests.receiver import samples
from tests.receiver.samples import NOW, Sample

Run = Callable[[Receiver, Request], Answer]


def run_sync(receiver: Receiver, request: Request) -> Answer:
    return receiver.process(request)


def run_async(receiver: Receiver, request: Request) -> Answer:
    return asyncio.run(receiver.process_async(request))


@pytest.fixture(params=[run_sync, run_async], ids=["sync", "async"])
def run(request: pytest.FixtureRequest) -> Run:
    return request.param  # type: ignore[no-any-return]


class Effects:
    """A handler that counts, and fails as often as it is told."""

    def __init__(self, failures: int = 0, result: Any = None) -> None:
        self.failures, self.result = failures, result
        self.ids: list[str] = []
        self.lock = threading.Lock()

    def __call__(self, message: Message) -> Any:
        with self.lock:
            if self.failures:
                self.failures -= 1
                raise RuntimeError("no luck")
            self.ids.append(message.id)
        return self.result


@pytest.fixture
def gate() -> Gate:
    return Gate(MemoryStore(), clock=FakeClock(NOW), max_failures=3)


def request_of(sample: Sample, **headers: str) -> Request:
    return Request(sample.headers | headers, sample.body, url=sample.url)


def receiver_of(sample: Sample, gate: Gate | None, handler: Any, **settings: Any) -> Receiver:
    sample.verifier._clock = lambda: NOW
    return Receiver(sample.verifier, gate, handler, **settings)


def test_a_first_delivery_and_its_duplicate(gate: Gate, run: Run) -> None:
    effects, sample = Effects(), samples.standard()
    receiver = receiver_of(sample, gate, effects)
    assert [run(receiver, request_of(sample)).status for _ in range(3)] == [200, 200, 200]
    assert effects.ids == ["msg_1"]


@pytest.mark.parametrize(
    ("result", "body", "content_type"),
    [
        ("done", b"done", "text/plain; charset=utf-8"),
        (b"\x00\xff", b"\x00\xff", "application/octet-stream"),
        ({"ok": True}, b'{"ok": true}', "application/json"),
        (Answer(201, b"<ok/>", "text/xml"), b"<ok/>", "text/xml"),
        (None, b"", ""),
        (object(), b"", ""),
    ],
)
def test_a_duplicate_gets_the_first_answer(
    gate: Gate, run: Run, result: Any, body: bytes, content_type: str
) -> None:
    effects, sample = Effects(result=result), samples.standard()
    receiver = receiver_of(sample, gate, effects)
    first, second = run(receiver, request_of(sample)), run(receiver, request_of(sample))
    assert (first.body, first.content_type) == (body, content_type)
    assert first == second
    assert len(effects.ids) == 1


def test_g02_a_handler_that_fails_frees_the_key(gate: Gate, run: Run) -> None:
    effects, sample = Effects(failures=1), samples.standard()
    receiver = receiver_of(sample, gate, effects)
    assert run(receiver, request_of(sample)).status == 500
    assert effects.ids == []
    assert run(receiver, request_of(sample)).status == 200
    assert run(receiver, request_of(sample)).status == 200
    assert effects.ids == ["msg_1"]


def test_g02_an_answer_that_is_no_2xx_is_a_failure(gate: Gate, run: Run) -> None:
    answers = [Answer(503, b"later"), Answer(200)]
    sample = samples.standard()
    receiver = receiver_of(sample, gate, lambda _: answers.pop(0))
    assert run(receiver, request_of(sample)).body == b"later"
    assert run(receiver, request_of(sample)).status == 200
    assert answers == []


@pytest.mark.parametrize(("settings", "status"), [({}, 409), ({"busy_status": 503}, 503)])
def test_work_in_progress_is_never_a_2xx(
    gate: Gate, run: Run, settings: dict[str, Any], status: int
) -> None:
    effects, sample = Effects(), samples.standard()
    receiver = receiver_of(sample, gate, effects, **settings)
    message = sample.verify()
    claim = gate.claim(message.key, message.fingerprint, 7.2).run()
    assert isinstance(claim, Claimed)
    answer = run(receiver, request_of(sample))
    assert answer.status == status
    assert dict(answer.headers)["retry-after"] == "8"
    assert effects.ids == []


def test_the_same_id_with_another_body_is_reported(
    gate: Gate, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    effects, first, second = Effects(), samples.github(b"{}"), samples.github(b'{"a":1}')
    receiver = receiver_of(first, gate, effects)
    assert run(receiver, request_of(first)).status == 200
    with caplog.at_level(logging.ERROR):
        assert run(receiver, request_of(second)).status == 422
    assert "known with another body" in caplog.text
    receiver = receiver_of(first, gate, effects, mismatch_status=409)
    assert run(receiver, request_of(second)).status == 409
    assert len(effects.ids) == 1


def test_after_n_failures_a_message_is_parked_and_can_be_revived(gate: Gate, run: Run) -> None:
    effects, sample = Effects(failures=3), samples.standard()
    receiver = receiver_of(sample, gate, effects)
    assert [run(receiver, request_of(sample)).status for _ in range(4)] == [500, 500, 500, 503]
    (letter,) = gate.dead_letters().run()
    assert "no luck" in (letter.error or "")
    assert gate.revive(letter.key).run()
    assert run(receiver, request_of(sample)).status == 200
    assert len(effects.ids) == 1


def test_nothing_is_claimed_before_verification(gate: Gate, run: Run) -> None:
    effects, sample = Effects(), samples.standard()
    receiver = receiver_of(sample, gate, effects)
    forged = request_of(sample, **{"webhook-signature": "v1,AAAA"})
    assert run(receiver, forged).status == 401
    assert run(receiver, Request(sample.headers, b"x" * (1 << 20) + b"y")).status == 413
    assert len(gate.store) == 0  # type: ignore[arg-type]
    assert run(receiver, request_of(sample)).status == 200
    assert effects.ids == ["msg_1"]


def test_a_body_of_several_messages_is_handled_message_by_message(gate: Gate, run: Run) -> None:
    seen: list[Any] = []
    broken = {"wamid.B"}

    def handler(message: Message) -> None:
        if message.id in broken:
            raise RuntimeError("not this one")
        seen.append(message.data["id"])

    sample = samples.meta()
    receiver = receiver_of(sample, gate, handler)
    assert run(receiver, request_of(sample)).status == 500
    assert seen == ["wamid.A"]
    broken.clear()
    assert run(receiver, request_of(sample)).status == 200
    assert seen == ["wamid.A", "wamid.B"]
    assert run(receiver, request_of(sample)).status == 200
    assert seen == ["wamid.A", "wamid.B"]


def test_a_message_in_progress_keeps_its_body_from_being_accepted(gate: Gate, run: Run) -> None:
    effects, sample = Effects(), samples.meta()
    receiver = receiver_of(sample, gate, effects)
    part = sample.verify().parts[0]
    assert isinstance(gate.claim(part.key, part.fingerprint).run(), Claimed)
    assert run(receiver, request_of(sample)).status == 409
    assert effects.ids == ["wamid.B"]


def test_one_message_twice_in_one_body_has_one_effect(gate: Gate, run: Run) -> None:
    message = {"message": {"mid": "m_1", "text": "hi"}}
    body = json.dumps({"object": "page", "entry": [{"messaging": [message, message]}]}).encode()
    effects, sample = Effects(), samples.meta(body)
    assert run(receiver_of(sample, gate, effects), request_of(sample)).status == 200
    assert effects.ids == ["m_1"]


def test_adyen_gets_the_word_it_waits_for(gate: Gate, run: Run) -> None:
    sample = samples.adyen(samples.ADYEN_ITEM, samples.adyen_signed(eventCode="CAPTURE"))
    effects = Effects()
    receiver = receiver_of(sample, gate, effects)
    for _ in range(2):
        answer = run(receiver, request_of(sample))
        assert (answer.status, answer.body) == (200, b"[accepted]")
    assert len(effects.ids) == 2


def test_handshakes_are_answered_without_the_handler(gate: Gate, run: Run) -> None:
    effects, sample = Effects(), samples.meta()
    receiver = receiver_of(sample, gate, effects)
    url = "https://x.example/?hub.mode=subscribe&hub.challenge=42&hub.verify_token="
    answer = run(receiver, Request({}, b"", method="GET", url=url + "meatyhamhock"))
    assert (answer.status, answer.body) == (200, b"42")
    assert answer.content_type.startswith("text/plain")
    assert run(receiver, Request({}, b"", method="GET", url=url + "wrong")).status == 401
    assert run(receiver, Request({}, b"", method="GET", url="https://x.example/")).status == 405
    sample = samples.slack(b'{"type":"url_verification","challenge":"abc"}')
    assert run(receiver_of(sample, gate, effects), request_of(sample)).body == b"abc"
    assert effects.ids == []


class BrokenStore(MemoryStore):
    """A memory store whose server is away for some operations."""

    def __init__(self, *broken: str) -> None:
        super().__init__()
        self.broken = set(broken)

    def __getattribute__(self, name: str) -> Any:
        if name in ("claim", "complete", "release") and name in self.broken:
            raise ConnectionError("away")
        return super().__getattribute__(name)


@pytest.mark.parametrize("broken", ["claim", "complete", "release"])
def test_a_store_that_is_away_is_never_a_2xx(run: Run, broken: str) -> None:
    store, sample = BrokenStore(broken), samples.standard()
    effects = Effects(failures=1 if broken == "release" else 0)
    receiver = receiver_of(sample, Gate(store, clock=FakeClock(NOW)), effects)
    answer = run(receiver, request_of(sample))
    assert answer.status == (500 if broken == "release" else 503)
    assert len(effects.ids) == (1 if broken == "complete" else 0)


def test_a_lapsed_lease_is_not_confirmed_over_the_new_holder(run: Run) -> None:
    clock = FakeClock(NOW)
    gate, sample = Gate(MemoryStore(), clock=clock), samples.standard()
    message = sample.verify()

    def slow(_: Message) -> str:
        clock.advance(61)
        assert isinstance(gate.claim(message.key, message.fingerprint).run(), Claimed)
        return "late"

    answer = run(receiver_of(sample, gate, slow), request_of(sample))
    assert answer.status == 409
    assert b"late" not in answer.body


def test_a_handler_can_extend_its_claim(gate: Gate, run: Run) -> None:
    sample = samples.standard()

    def handler(message: Message) -> None:
        assert gate.extend(message.key, message.token, 600).run()
        assert not gate.extend(message.key, "another", 600).run()

    assert run(receiver_of(sample, gate, handler), request_of(sample)).status == 200


async def test_async_handlers_run_on_the_loop(gate: Gate) -> None:
    sample, threads = samples.standard(), []

    async def handler(message: Message) -> str:
        await asyncio.sleep(0)
        threads.append(threading.current_thread())
        return message.id

    receiver = receiver_of(sample, gate, handler)
    answer = await receiver.process_async(request_of(sample))
    assert answer.body == b"msg_1"
    assert threads == [threading.main_thread()]
    with pytest.raises(ConfigurationError, match="async"):
        receiver.process(request_of(sample))


async def test_a_cancelled_handler_gives_its_claim_back(gate: Gate) -> None:
    sample, started = samples.standard(), asyncio.Event()

    async def handler(_: Message) -> None:
        started.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(receiver_of(sample, gate, handler).process_async(request_of(sample)))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert isinstance(await gate.claim(sample.verify().key), Claimed)


async def test_a_cancelled_thread_keeps_its_claim_for_it_can_not_be_stopped(gate: Gate) -> None:
    sample, started, stop = samples.standard(), threading.Event(), threading.Event()

    def handler(_: Message) -> None:
        started.set()
        assert stop.wait(10)

    task = asyncio.create_task(receiver_of(sample, gate, handler).process_async(request_of(sample)))
    await asyncio.to_thread(started.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    stop.set()
    assert not isinstance(await gate.claim(sample.verify().key), Claimed)


def test_without_a_gate_requests_are_verified_only(run: Run) -> None:
    effects, sample = Effects(), samples.standard()
    receiver = receiver_of(sample, None, effects)
    assert [run(receiver, request_of(sample)).status for _ in range(2)] == [200, 200]
    assert run(receiver, request_of(sample, **{"webhook-id": "x"})).status == 401
    assert effects.ids == ["msg_1", "msg_1"]


def test_g01_fifty_at_once_have_one_effect(gate: Gate) -> None:
    effects, sample = Effects(), samples.standard()
    receiver = receiver_of(sample, gate, effects)
    barrier = threading.Barrier(50)
    statuses: list[int] = []

    def fire() -> None:
        barrier.wait(10)
        statuses.append(receiver.process(request_of(sample)).status)

    threads = [threading.Thread(target=fire) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert effects.ids == ["msg_1"]
    assert set(statuses) <= {200, 409}
    assert receiver.process(request_of(sample)).status == 200


def test_without_a_gate_a_failure_is_a_500_and_all_parts_come_at_once(run: Run) -> None:
    parts: list[int] = []

    def handler(message: Message) -> None:
        parts.append(len(message.parts))
        raise RuntimeError("no luck")

    sample = samples.meta()
    assert run(receiver_of(sample, None, handler), request_of(sample)).status == 500
    assert parts == [2]


def test_g06_attempts_with_one_id_and_fresh_signatures_have_one_effect(
    gate: Gate, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    effects = Effects()
    for attempt in range(3):
        monkeypatch.setattr(samples, "NOW", NOW + 60 * attempt)
        sample = samples.standard()
        assert sample.headers["webhook-timestamp"] == str(NOW + 60 * attempt)
        assert run(receiver_of(sample, gate, effects), request_of(sample)).status == 200
    assert effects.ids == ["msg_1"]


def test_g09_the_events_own_time_tells_an_older_one_that_arrives_last(gate: Gate, run: Run) -> None:
    stored = {"at": ""}

    def handler(message: Message) -> None:
        if message.data["timestamp"] > stored["at"]:
            stored.update(at=message.data["timestamp"], state=message.data["state"])

    for id_, at, state in (
        ("2", "2026-11-29T10:00:02Z", "new"),
        ("1", "2026-11-29T10:00:01Z", "old"),
    ):
        body = json.dumps({"id": id_, "timestamp": at, "state": state}).encode()
        sample = samples.stripe(body)
        assert run(receiver_of(sample, gate, handler), request_of(sample)).status == 200
    assert stored["state"] == "new"


def test_a_coroutine_that_a_plain_handler_gives_is_run_or_refused_never_dropped(
    gate: Gate,
) -> None:
    effects, sample = Effects(), samples.standard()

    async def effect(message: Message) -> None:
        effects(message)

    # A lambda, because a function that is async by itself is recognised as such.
    receiver = receiver_of(sample, gate, lambda message: effect(message))  # noqa: PLW0108
    assert run_sync(receiver, request_of(sample)).status == 500
    assert effects.ids == []
    assert run_async(receiver, request_of(sample)).status == 200
    assert len(effects.ids) == 1
    assert run_sync(receiver, request_of(sample)).status == 200


def test_settings_that_can_not_work(gate: Gate) -> None:
    verifier = Verifier.github("hush")
    for arguments, settings in (
        ((verifier, gate), {"busy_status": 200}),
        ((verifier, gate), {"mismatch_status": 200}),
        ((verifier, gate), {"typo": 1}),
        ((verifier, None), {"transaction": object}),
    ):
        with pytest.raises(ConfigurationError):
            Receiver(*arguments, Effects(), **settings)


def test_async_handlers_of_every_form_are_recognised() -> None:
    class Form:
        async def __call__(self) -> None: ...

        async def method(self) -> None: ...

    assert is_async(Form())
    assert is_async(Form().method)
    assert not is_async(Effects())
    assert not is_async(Form)
