"""What verification gives: a message with its raw body, and its content on request."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import NoReturn
from urllib.parse import parse_qsl

from receiver.errors import RequestError
from receiver.paths import Parsed, find
from receiver.request import Headers

__all__ = ["Message", "Part", "parse_form", "parse_json"]


@dataclass(frozen=True, slots=True)
class Part:
    """What is to run to effect once: a message, or one of several in a body.

    ``key`` is scoped by source and endpoint and is what a gate claims; ``id`` is how the source
    names it. ``fingerprint`` is the SHA-256, in hex, of what may not differ under the same key:
    the body, or this part of it. ``data`` is this part's content, for a body of several.
    """

    key: str
    id: str
    fingerprint: str
    data: Parsed = None


@dataclass(frozen=True)
class Message:
    """A verified delivery.

    ``source`` is the provider, ``endpoint`` the name that the verifier was given. ``body`` is the
    raw body (of a GET, the query). ``timestamp`` is the *signed* time of this attempt, UTC, or
    None where the provider signs none. ``parts`` has at least one `Part`. ``reply`` is an answer
    that the provider asks for in place of handling (Slack's URL verification). ``token`` proves
    the gate's claim while the handler runs: pass it to ``gate.extend``.
    """

    source: str
    endpoint: str
    body: bytes
    headers: Headers = field(repr=False)
    parts: tuple[Part, ...]
    type_at: str = field(default="", repr=False)
    timestamp: datetime | None = None
    form: bool = False
    reply: bytes | None = None
    token: str = field(default="", repr=False)

    @property
    def key(self) -> str:
        """The scoped key of the (first) part."""
        return self.parts[0].key

    @property
    def keys(self) -> tuple[str, ...]:
        """The scoped keys of all parts."""
        return tuple([part.key for part in self.parts])

    @property
    def id(self) -> str:
        """The id of the (first) part, as the source names it."""
        return self.parts[0].id

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the (first) part."""
        return self.parts[0].fingerprint

    def json(self) -> Parsed:
        """The whole body, parsed as JSON; parsed once.

        Raises `RequestError` when it is not JSON, which an empty body isn't either.
        """
        return self._json

    @property
    def data(self) -> Parsed:
        """The content of this part, or of the whole body: JSON, or a form as a dict.

        A form field that is there several times is a list. Raises `RequestError` when the body
        is neither.
        """
        if len(self.parts) == 1 and self.parts[0].data is not None:
            return self.parts[0].data
        return self.content

    @property
    def content(self) -> Parsed:
        """The whole body's content, as `data` has it."""
        return self._form if self.form else self._json

    @property
    def type(self) -> str | None:
        """The event type or topic; None where there is none or the body can't be read."""
        try:
            return next((str(value) for value in self.values(self.type_at)), None)
        except RequestError:
            return None

    def values(self, where: str) -> list[Parsed]:
        """The values at ``header:<name>`` or ``body:<path>``, of the first alternative with any.

        Raises `RequestError` when the body has to be read for it and can't be.
        """
        for place in where.split("|"):
            kind, _, name = place.partition(":")
            if kind == "header":
                value = self.headers.get(name)
                found = [] if value is None else [value]
            else:
                found = list(find(self.content, name)) if name else []
            if found:
                return found
        return []

    def only(self, part: Part, token: str = "") -> Message:
        """The same delivery with one of its parts, held under `token`."""
        return self._parsed_already(replace(self, parts=(part,), token=token))

    def with_parts(self, parts: tuple[Part, ...], reply: bytes | None = None) -> Message:
        """The same delivery with its parts known."""
        return self._parsed_already(replace(self, parts=parts, reply=reply))

    def _parsed_already(self, changed: Message) -> Message:
        for name in ("_json", "_form"):
            if name in self.__dict__:
                changed.__dict__[name] = self.__dict__[name]
        return changed

    @cached_property
    def _json(self) -> Parsed:
        return parse_json(self.body)

    @cached_property
    def _form(self) -> dict[str, Parsed]:
        fields: dict[str, Parsed] = {}
        for name, value in parse_form(self.body):
            if name in fields:
                known = fields[name]
                fields[name] = [*known, value] if isinstance(known, list) else [known, value]
            else:
                fields[name] = value
        return fields


def parse_json(body: bytes) -> Parsed:
    """`body` as JSON in UTF-8. Raises `RequestError` for everything else, NaN included."""
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError):
        # Among them: numbers of more than 4,300 digits, and nesting deeper than the stack.
        raise RequestError("body_malformed", "the body is not JSON in UTF-8") from None


def parse_form(body: bytes) -> list[tuple[str, str]]:
    """`body` as the fields of a URL-encoded form, in order. Raises `RequestError`."""
    if not body:
        return []
    try:
        return parse_qsl(
            body.decode("ascii"), keep_blank_values=True, strict_parsing=True, errors="strict"
        )
    except ValueError:
        raise RequestError("body_malformed", "the body is not a URL-encoded form") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)
