"""The inbox: verify, store, answer 202 at once; a worker handles the message afterwards.

For handlers that may take longer than the provider waits (0.5 to 3 s with some). ::

    inbox = Inbox(engine)

    @inbox.handler("invoice.paid")
    def paid(message: InboxMessage) -> None: …

    inbox.add(verifier.verify(headers, body)).run()     # then answer 202
    asyncio.run(InboxWorker(inbox).run())               # in the same process or in others
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from receiver.call import Call
from receiver.database import Database
from receiver.errors import GateError
from receiver.gate import DEFAULT_LEASE, DEFAULT_TTL, stored_key, stored_text
from receiver.inboxsql import InboxSql, inbox_table
from receiver.receipt import DeadLetter
from receiver.statements import metadata
from receiver.store import Steps
from receiver.windows import Window, check_memory
from wire.contract import Contract

__all__ = ["DEFAULT_DELAYS", "Added", "Handler", "Inbox", "InboxMessage", "metadata"]

DEFAULT_DELAYS = (5.0, 30.0, 120.0, 600.0, 3600.0, 21_600.0)
"""Seconds between the attempts of a handler: N delays are N+1 attempts, then it is parked."""


@dataclass(frozen=True, slots=True)
class InboxMessage:
    """What a handler gets. ``attempt`` counts from 1; ``received_at`` is UTC.

    ``key`` stays the same for every repeat: use it for idempotent calls to others. ``body`` is
    the raw body of the delivery, or, where a delivery held several messages, this one as JSON.
    """

    key: str
    type: str
    body: bytes
    attempt: int
    received_at: datetime

    def json(self) -> Any:
        """The body, parsed. Raises ValueError when it is not JSON."""
        return json.loads(self.body)


Handler = Callable[..., Awaitable[object] | object]


class Added(NamedTuple):
    """What became of a message: ``new`` and ``duplicate`` are to be answered with 202.

    ``mismatch`` means that the key is known with another body; nothing was stored: report it.
    """

    key: str
    outcome: Literal["new", "duplicate", "mismatch"]


class _Part(Protocol):
    """One message of a verified delivery, as `receiver.Verifier` gives it."""

    @property
    def key(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def data(self) -> Any: ...


class _Delivery(Protocol):
    """A verified delivery."""

    @property
    def body(self) -> bytes: ...
    @property
    def type(self) -> str | None: ...
    @property
    def parts(self) -> tuple[_Part, ...]: ...


class _Pokable(Protocol):
    def poke(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Registration:
    """A handler, and whether it takes part in the transaction that completes the message."""

    handler: Handler
    transactional: bool


T = TypeVar("T")
H = TypeVar("H", bound=Handler)


class Inbox:
    """Messages stored before they are answered, in the table ``surehook_inbox``.

    `engine` is synchronous or asynchronous, and so are the calls (``.run()`` or ``await``).
    `lease` and `ttl` are seconds: how long a dead worker's message waits for another, and how
    long a finished message is remembered (`purge` deletes it after that). `delays` are the
    seconds between attempts; after the last one the message is parked. `sender`, a provider's name,
    a `Window` or the contract of a Surehook service, is whose repeats the ttl must outlive. `clock`
    returns unix seconds; without it the database's clock counts.

    Raises `GateError` for settings that can't work, `ConfigurationError` for too short a memory.
    """

    def __init__(
        self,
        engine: Engine | AsyncEngine,
        *,
        lease: float = DEFAULT_LEASE,
        ttl: float = DEFAULT_TTL,
        delays: Iterable[float] = DEFAULT_DELAYS,
        sender: str | Window | Contract | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        if lease <= 0 or ttl <= 0:
            raise GateError("lease and ttl must be above 0 seconds")
        if sender is not None:
            check_memory(ttl, sender)
        self.database = Database(engine)
        self.sql = InboxSql(engine.dialect, self.database.family)
        self.lease = lease
        self.delays = tuple(delays)
        if any(delay < 0 for delay in self.delays):
            raise GateError("delays must be 0 seconds or more")
        self._ttl = ttl
        self._clock = clock
        self._handlers: dict[str, Registration] = {}
        self._workers: weakref.WeakSet[_Pokable] = weakref.WeakSet()

    def create_table(self) -> Call[None]:
        """Create the table unless it is there. Safe when several processes do it at once."""
        return self._call(self.database.create(metadata, inbox_table.name))

    def handler(self, *types: str, transactional: bool = False) -> Callable[[H], H]:
        """Register a handler, synchronous or asynchronous, for event types; ``"*"`` for the rest.

        It is called with an `InboxMessage`; an exception makes it a failed attempt. With
        `transactional` it is called with the message and a ``Connection`` (``AsyncConnection``
        on an asynchronous engine): what it writes there commits together with the message's
        completion, so it happens exactly once. Without, it happens at least once.

        Raises `GateError` when a type has a handler already.
        """
        if not types:
            raise GateError('name the event types of the handler, or "*" for every other type')

        def register(handler: H) -> H:
            for name in types:
                if stored_text(name) in self._handlers:
                    raise GateError(f"event type {name!r} has a handler already")
                self._handlers[stored_text(name)] = Registration(handler, transactional)
            return handler

        return register

    def registered(self, event_type: str) -> Registration | None:
        """The handler of an event type, or that of ``"*"``."""
        return self._handlers.get(stored_text(event_type)) or self._handlers.get("*")

    def add(self, message: _Delivery) -> Call[list[Added]]:
        """Store a verified delivery: one insert for each message in it. Then answer 202."""
        several = len(message.parts) > 1
        event_type = stored_text(message.type or "")
        return self._call(
            self._store(
                [
                    {
                        "key": stored_key(part.key),
                        "fingerprint": part.fingerprint,
                        "event_type": event_type,
                        # ASCII only: an escaped lone surrogate has no UTF-8.
                        "body": json.dumps(part.data).encode() if several else message.body,
                    }
                    for part in message.parts
                ]
            )
        )

    def put(
        self, key: str, body: bytes, *, event_type: str = "", fingerprint: str = ""
    ) -> Call[list[Added]]:
        """Store one message that was verified by other means. See `add`."""
        return self._call(
            self._store(
                [
                    {
                        "key": stored_key(key),
                        "fingerprint": fingerprint,
                        "event_type": stored_text(event_type),
                        "body": body,
                    }
                ]
            )
        )

    def _store(self, rows: list[dict[str, Any]]) -> Steps[list[Added]]:
        now = self.now()
        outcomes = yield self.database.run(
            lambda c: [self.sql.insert(c, {**row, "now": now}) for row in rows]
        )
        if "new" in outcomes:
            for worker in list(self._workers):
                worker.poke()
        return [Added(row["key"], outcome) for row, outcome in zip(rows, outcomes, strict=True)]

    def dead_letters(self, limit: int = 100) -> Call[list[DeadLetter]]:
        """The parked messages, oldest first, at most `limit`."""
        return self._work(lambda c: self.sql.parked(c, limit))

    def revive(self, key: str) -> Call[bool]:
        """Make a parked message due at once, with a fresh schedule. False if it is not parked."""
        values = {"key": stored_key(key), "now": self.now()}
        return self._work(lambda c: self.sql.change(c, "revive", values))

    def pending(self) -> Call[tuple[int, float]]:
        """How many messages are not finished, and the age of the oldest in seconds. Watch it."""
        return self._work(lambda c: self.sql.pending(c, self.now()))

    def purge(self, limit: int = 1000) -> Call[int]:
        """Delete up to `limit` messages finished longer than the ttl ago; return how many."""
        ttl = round(self._ttl * 1000)
        return self._work(lambda c: self.sql.purge(c, ttl, limit, self.now()))

    def attach(self, worker: _Pokable) -> None:
        """Let `add` wake a worker of this process."""
        self._workers.add(worker)

    def now(self) -> int | None:
        """The clock's time in milliseconds, or None for the database's."""
        return None if self._clock is None else round(self._clock() * 1000)

    def _work(self, work: Callable[[Any], T]) -> Call[T]:
        def steps() -> Steps[T]:
            result: T = yield self.database.run(work)
            return result

        return self._call(steps())

    def _call(self, steps: Steps[T]) -> Call[T]:
        return Call(steps, blocking=self.database.blocking)
