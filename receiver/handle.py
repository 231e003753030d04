"""From request to answer: verify, claim, handle, confirm. The same for every framework.

The flow is written once, as a generator of steps; a synchronous and an asynchronous driver do
them. Nothing is claimed before verification has ended. A message answers 2xx only when it is done:

=====================  =====================================================================
claimed                the handler runs; then the claim is confirmed and the answer remembered
done before            2xx, with the remembered answer
in progress elsewhere  409 (or 503) with Retry-After
handler raised         the claim is released, 500
parked                 503 with Retry-After: it waits in the gate's dead-letter list
known with other body  422, logged: never dropped without a word
=====================  =====================================================================

A body with several messages is handled message by message. Those already done are skipped, and the
answer is 2xx only when all of them are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias, Unpack

from receiver.answer import Answer, from_result, problem, refusal
from receiver.call import Call
from receiver.drive import AnyContext, Enter, Handle, Leave, is_async
from receiver.errors import ConfigurationError, VerificationError
from receiver.gate import Claimed, ClaimResult, Done, Gate, InProgress, Mismatch
from receiver.message import Message, Part
from receiver.request import Request
from receiver.settings import Handler, Settings, memory
from receiver.store import Steps
from receiver.verify import Verifier
from wire.errors import SurehookError

__all__ = ["Receiver"]

logger = logging.getLogger("surehook.receiver")

PARKED_RETRY_AFTER: Final = 3600.0
STORE_RETRY_AFTER: Final = 10.0
_Further: TypeAlias = tuple[tuple[object, ...], dict[str, object]]


class Receiver:
    """One endpoint that receives: a verifier, a gate, and the handler that has the effect.

    `handler` is called with a verified `Message`, once for each message of a body; a plain or an
    async function. What it returns becomes the answer (see `receiver.answer.from_result`).

    `gate` may be None: then requests are verified only, and the handler, which gets the message
    with all its parts (for an inbox, say), sees to the rest.
    `transaction` returns a context manager with a SQLAlchemy session or connection
    (``sessionmaker.begin``): the claim is made inside that transaction, the handler gets the
    session as its second argument, and effect and claim commit together.

    `sender` is where the retries come from, if that isn't the verifier's provider: a `Window` or
    the contract of a Surehook service. `ttl`, in seconds, is the memory of finished messages; left
    out, it is the gate's or, where that is the default and too short, the recommended one.
    `lease` is in seconds. `busy_status` (409 or 503) and `mismatch_status` are the answers
    for messages in progress and for known ids with another body.

    Raises `ConfigurationError` for a memory that is too short, and says which one to use.
    """

    __slots__ = (
        "_asynchronous",
        "_busy_status",
        "_lease",
        "_mismatch_status",
        "_transaction",
        "gate",
        "handler",
        "ttl",
        "verifier",
    )

    def __init__(
        self,
        verifier: Verifier,
        gate: Gate | None,
        handler: Handler,
        **settings: Unpack[Settings],
    ) -> None:
        unknown = settings.keys() - Settings.__annotations__.keys()
        if unknown:
            raise ConfigurationError(f"a receiver has no setting {', '.join(sorted(unknown))}")
        transaction = settings.get("transaction")
        busy_status = settings.get("busy_status", 409)
        mismatch_status = settings.get("mismatch_status", 422)
        if busy_status not in (409, 503):
            raise ConfigurationError("busy_status must be 409 or 503: both can be retried")
        if not 400 <= mismatch_status < 600:
            raise ConfigurationError("mismatch_status must be an error, 400 to 599")
        if transaction is not None and gate is None:
            raise ConfigurationError("transaction needs a gate, whose claim it commits")
        self.verifier = verifier
        self.gate = gate
        self.handler = handler
        self._transaction = transaction
        self.ttl = None if gate is None else memory(gate, verifier, settings)
        self._lease = settings.get("lease")
        self._busy_status = busy_status
        self._mismatch_status = mismatch_status
        self._asynchronous = is_async(handler)

    @property
    def max_body(self) -> int:
        """The most bytes a body may have."""
        return self.verifier.max_body

    def process(self, request: Request, /, *arguments: object, **named: object) -> Answer:
        """Answer `request`, in synchronous code. Further arguments go to the handler as well."""
        if self._asynchronous:
            raise ConfigurationError("the handler is async: use process_async, or an async view")
        return Call(self._flow(request, arguments, named, threaded=False), blocking=False).run()

    async def process_async(
        self, request: Request, /, *arguments: object, **named: object
    ) -> Answer:
        """Answer `request`, in asynchronous code. A plain handler runs in a thread."""
        threaded = not self._asynchronous
        if threaded and self._transaction is not None:
            # A session belongs to one thread: claim, handler and commit go there together.
            return await asyncio.to_thread(self.process, request, *arguments, **named)
        steps = self._flow(request, arguments, named, threaded=threaded)
        return await Call(steps, blocking=False)

    def _flow(
        self,
        request: Request,
        arguments: tuple[object, ...],
        named: dict[str, object],
        *,
        threaded: bool,
    ) -> Steps[Answer]:
        try:
            challenge = self.verifier.handshake(request)
            if challenge is not None:
                return _echo(challenge)
            if request.method not in self.verifier.provider.methods:
                return Answer(405, headers=(("allow", ", ".join(self.verifier.provider.methods)),))
            message = self.verifier.verify_request(request)
        except VerificationError as error:
            logger.warning("refused a %s request: %s", self.verifier.source, error.reason)
            return refusal(error)
        if message.reply is not None:
            return _echo(message.reply)
        if self.gate is None:
            return (yield from self._ungated(message, (arguments, named), threaded))
        answers = []
        for part in message.parts:
            run = partial(self._run, message, part, (arguments, named))
            if self._transaction is None:
                answers.append((yield from self._guarded(self.gate, part, run, threaded)))
            else:
                context = self._transaction()
                answers.append((yield from self._together(self.gate, part, run, context)))
        return _overall(answers, self.verifier.provider.accepted)

    def _ungated(self, message: Message, further: _Further, threaded: bool) -> Steps[Answer]:
        """The whole message to the handler, as often as it comes."""
        arguments, named = further
        try:
            run = partial(self.handler, message, *arguments, **named)
            result = yield Handle(run, threaded)
        except Exception:
            logger.exception("the handler failed for %r", message.key)
            return problem(500, "handler_failed")
        return self._answer(result)

    def _run(
        self, message: Message, part: Part, further: _Further, token: str, *session: object
    ) -> object:
        arguments, named = further
        return self.handler(message.only(part, token), *session, *arguments, **named)

    def _guarded(
        self, gate: Gate, part: Part, run: Callable[..., object], threaded: bool
    ) -> Steps[Answer]:
        """Claim and effect in two systems: claim with a lease, confirm after success."""
        claim = yield from self._claim(gate, part)
        if not isinstance(claim, Claimed):
            return self._unclaimed(claim, part)
        try:
            answer = self._answer((yield Handle(partial(run, claim.token), threaded)))
        except BaseException as error:
            failed = isinstance(error, Exception)
            # A thread can't be stopped and may still have its effect: its claim has to lapse.
            if failed or not threaded:
                yield from _release(gate, part, claim.token, error)
            if not failed:
                raise
            return problem(500, "handler_failed")
        if not answer.accepted:
            yield from _release(gate, part, claim.token, _NotAcceptedError(answer.status))
            return answer
        try:
            kept = yield gate.complete(part.key, claim.token, answer.remember(), self.ttl)
        except Exception:
            logger.exception("%r was handled, but the gate's store failed", part.key)
            return self._unclaimed(None, part)
        if not kept:
            logger.warning("the lease of %r lapsed before its handler had finished", part.key)
            return problem(self._busy_status, "lease_lost", retry_after=1)
        return answer

    def _together(
        self, gate: Gate, part: Part, run: Callable[..., object], context: AnyContext
    ) -> Steps[Answer]:
        """Claim and effect in the caller's transaction: one commit for both."""
        try:
            session = yield Enter(context)
        except Exception:
            logger.exception("no transaction could be begun for %r", part.key)
            return self._unclaimed(None, part)
        inside = gate.within(session)
        claim: ClaimResult | None = None
        failed: BaseException | None = None
        answer = problem(500, "handler_failed")
        try:
            claim = yield from self._claim(inside, part)
            if isinstance(claim, Claimed):
                answer = self._answer((yield Handle(partial(run, claim.token, session))))
                if answer.accepted:
                    yield inside.complete(part.key, claim.token, answer.remember(), self.ttl)
                else:
                    failed = _NotAcceptedError(answer.status)
            else:
                answer = self._unclaimed(claim, part)
                failed = None if claim else _NotAcceptedError(answer.status)
        except BaseException as error:  # noqa: BLE001 - handled below, after the roll-back
            failed = error
        try:
            yield Leave(context, failed)
        except Exception as error:  # noqa: BLE001 - handled below, like a failure of the handler
            failed, answer = failed or error, problem(500, "commit_failed")
        if failed is not None and isinstance(claim, Claimed):
            yield from _release(inside, part, claim.token, failed)
        if failed is not None and not isinstance(failed, Exception):
            raise failed
        return answer

    def _claim(self, gate: Gate, part: Part) -> Steps[ClaimResult | None]:
        """The gate's decision; None when its store is away or full."""
        try:
            claim: ClaimResult = yield gate.claim(part.key, part.fingerprint, self._lease)
        except Exception:
            logger.exception("the gate's store failed for %r", part.key)
            return None
        return claim

    def _unclaimed(self, claim: ClaimResult | None, part: Part) -> Answer:
        match claim:
            case Done(response):
                return Answer.recall(response)
            case InProgress(retry_after):
                return problem(self._busy_status, "in_progress", retry_after=retry_after)
            case Mismatch():
                logger.error("%r is known with another body: not handled", part.key)
                detail = "this id is known with another body"
                return problem(self._mismatch_status, "fingerprint_mismatch", detail)
            case None:
                return problem(503, "store_unavailable", retry_after=STORE_RETRY_AFTER)
            case _:
                logger.error("%r is parked after too many failures", part.key)
                return problem(503, "parked", retry_after=PARKED_RETRY_AFTER)

    def _answer(self, result: object) -> Answer:
        return from_result(result, self.verifier.provider.accepted)


class _NotAcceptedError(SurehookError):
    """The handler chose to answer something else than 2xx."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the handler answered {status}")


def _release(gate: Gate, part: Part, token: str, error: BaseException) -> Steps[None]:
    """Give the claim back. What isn't an `Exception` (a shutdown) is no failed attempt."""
    if isinstance(error, Exception) and not isinstance(error, _NotAcceptedError):
        logger.error("the handler failed for %r", part.key, exc_info=error)
    try:
        yield gate.release(part.key, token, error if isinstance(error, Exception) else None)
    except Exception:
        # The lease lapses all the same.
        logger.exception("the gate's store failed to release %r", part.key)


def _echo(challenge: bytes) -> Answer:
    # Plain, and not to be taken for anything else: the text is the caller's.
    headers = (("x-content-type-options", "nosniff"),)
    return Answer(200, challenge, "text/plain; charset=utf-8", headers)


def _overall(answers: list[Answer], accepted: bytes) -> Answer:
    """One answer for all messages of a body: a failure first, then what is still to come."""
    if len(answers) == 1:
        return answers[0]
    refused = [answer for answer in answers if not answer.accepted]
    if refused:
        return max(refused, key=lambda answer: answer.status)
    return from_result(None, accepted)
