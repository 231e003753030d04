"""What identifies a message, so that a redelivery is recognised.

A `KeyRule` says where the id of a delivery is: in a header, in a field of the body, or, for bodies
that carry several messages, in each of them. Keys are scoped: ``source:endpoint:id``, so that
neither two providers nor two endpoints swallow each other's messages.

Paths are written as in `receiver.paths`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from receiver.errors import RequestError
from receiver.message import Part
from receiver.paths import Parsed, descend, find
from receiver.request import Headers

__all__ = ["DELIVERY_HEADERS", "META_MESSAGES", "KeyRule", "digest", "fingerprint", "scoped"]

DELIVERY_HEADERS: Final = (
    "webhook-id",
    "x-webhook-delivery-id",
    "x-delivery-id",
    "x-idempotency-key",
    "x-event-id",
)
"""Headers in which senders and relays name a delivery, in the order in which they are asked."""

MAX_PARTS: Final = 1000
"""Most messages in one body: bounds the work of one request. Meta batches up to 1,000 updates."""


@dataclass(frozen=True, slots=True)
class KeyRule:
    """Where a message's id is. The first of these that gives one counts:

    ``messages``: paths to the ids of several messages in one body. Each becomes a part; its data
    is the list element that holds the id. An id of several fields is written with ``+`` between
    their paths from that element. What else is in the body, at the paths ``others`` (the
    elements without any such id), forms one more part under the id of the delivery. ``marks`` are
    paths in a message that, when set, make it another one (Instagram's ``is_deleted`` has the id
    of the message that is deleted).

    ``headers``: names of headers. ``paths``: paths in the body, all of whose values are joined
    with ``:``; one that may be at several places is written with ``|`` between them.
    ``body_hash``: the SHA-256 of the body, for senders that name nothing; two deliveries with
    equal bodies are then one message.

    ``fingerprint``: paths, in the message or else the body, whose values alone must agree under
    the same key, for providers that change the rest from attempt to attempt. ``under`` is a path
    before all others, for bodies in an envelope.
    """

    headers: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    body_hash: bool = False
    messages: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    fingerprint: tuple[str, ...] = ()
    under: str = ""

    def parts(
        self, scope: str, headers: Headers, body: bytes, content: Callable[[], Parsed]
    ) -> tuple[Part, ...]:
        """The parts of a message, at least one; `content` parses the body, if that is needed.

        Raises `RequestError` when nothing identifies it or the body can't be parsed.
        """
        if self.messages and (parts := self._messages(scope, headers, body, content)):
            return parts
        name = self._delivery_id(headers, body, content)
        unchanged = self._unchanged(self._root(content)) if self.fingerprint else fingerprint(body)
        return (Part(f"{scope}{name}", name, unchanged),)

    def _unchanged(self, item: Parsed) -> str:
        """The fingerprint of a message by what stays the same from attempt to attempt."""
        if not self.fingerprint:
            return digest(item)
        return digest([list(find(item, path)) for path in self.fingerprint])

    def _root(self, content: Callable[[], Parsed]) -> Parsed:
        return next(find(content(), self.under), None)

    def _messages(
        self, scope: str, headers: Headers, body: bytes, content: Callable[[], Parsed]
    ) -> tuple[Part, ...]:
        root = self._root(content)
        parts, named = [], set()
        for path in self.messages:
            holder, _, tail = path.rpartition("[].")
            for item in find(root, f"{holder}[]"):
                name = _joined(item, tail.split("+"))
                if name is None:
                    continue
                marks = [mark for mark in self.marks if next(find(item, mark), None)]
                name = ":".join([name, *marks])
                parts.append(Part(f"{scope}{name}", name, self._unchanged(item), item))
                named.add(id(item))
        if parts and (rest := self._rest(root, named)):
            name = self._delivery_id(headers, body, content)
            parts.append(Part(f"{scope}{name}", name, digest(rest), rest))
        if len(parts) > MAX_PARTS:
            raise RequestError("too_many_messages", f"more than {MAX_PARTS} messages in one body")
        return tuple(parts)

    def _rest(self, root: Parsed, named: set[int]) -> list[Parsed]:
        """The elements at ``others`` that neither are, hold, nor are held by one already taken."""
        rest: list[Parsed] = []
        covered: set[int] = set()
        for path in self.others:
            for item in find(root, path):
                inside = {id(value) for value in descend(item)}
                if id(item) not in covered and not inside & named:
                    rest.append(item)
                    covered |= inside
        return rest

    def _delivery_id(self, headers: Headers, body: bytes, content: Callable[[], Parsed]) -> str:
        name = headers.first(self.headers)
        if name is None and self.paths:
            name = _joined(self._root(content), self.paths)
        if name is None and self.body_hash:
            name = f"body-{fingerprint(body)}"
        if name is None:
            wanted = [f"header {header}" for header in self.headers]
            wanted += [f"field {path}" for path in (*self.paths, *self.messages)]
            raise RequestError(
                "key_missing", f"nothing identifies the message: no {', no '.join(wanted)}"
            )
        return name


META_MESSAGES: Final = KeyRule(
    messages=("entry[].changes[].value.messages[].id", "entry[].messaging[].message.mid"),
    others=("entry[].changes[]", "entry[].changes[].value.statuses[]", "entry[].messaging[]"),
    marks=("message.is_deleted",),
    headers=DELIVERY_HEADERS,
    body_hash=True,
)
"""WhatsApp's, Instagram's and Messenger's message ids; status callbacks have none and fall back
to the id of the delivery: a relay's header, or else the body's hash."""


def scoped(source: str, endpoint: str) -> str:
    """The beginning of every key of `source` at `endpoint`, in which no name can reach further."""
    return f"{quote(source, safe='')}:{quote(endpoint, safe='/')}:"


def fingerprint(body: bytes) -> str:
    """The SHA-256 of `body`, in hex."""
    return hashlib.sha256(body).hexdigest()


def _joined(item: Parsed, paths: Sequence[str]) -> str | None:
    """The values at `paths` joined with ``:``; None when one is missing."""
    values = []
    for path in paths:
        found = [text for place in path.split("|") for text in map(_id_text, find(item, place))]
        value = next((text for text in found if text is not None), None)
        if value is None:
            return None
        values.append(value)
    return ":".join(values)


def _id_text(value: Parsed) -> str | None:
    """An id as text: text that is not empty, a whole number, or a truth value as JSON has it."""
    if isinstance(value, str):
        return value or None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    return None


def digest(value: Parsed) -> str:
    """The SHA-256 of parsed content, in hex: tells whether two of them say the same.

    Raises `RequestError` for content nested too deeply.
    """
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    except RecursionError:
        raise RequestError("body_malformed", "the body is nested too deeply") from None
    return fingerprint(text.encode())
