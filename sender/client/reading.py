"""Answers of the service read into typed results, strictly in type and leniently in members."""

from __future__ import annotations

import base64
import binascii
import json
import re
import types
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import cache
from http import HTTPStatus
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from sender.client.results import Page
from sender.client.traffic import Event, EventWithBody, FeedEntry, FeedItem, FeedPage
from sender.errors import ApiError, Fault
from sender.publish import Published
from wire.contract import Contract
from wire.envelope import parse_timestamp
from wire.errors import SurehookError
from wire.rawjson import raw_items

T = TypeVar("T")
REQUEST_ID = "x-request-id"
MAX_EXCERPT = 200
_BETWEEN = re.compile(r"[ \t\r\n,:]*")


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer. The names of ``headers`` are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes = field(repr=False)

    @property
    def is_success(self) -> bool:
        """Whether it is a 2xx."""
        return 200 <= self.status < 300


class Undocumented(Exception):
    """An answer is not what the operation promises. Becomes an `ApiError`."""


def read_result(result: type[T], answer: Answer) -> T:
    """Return the result that an answer holds. Raises `ApiError` if it does not."""
    try:
        return cast("T", _convert(result, _json(answer.content), "#"))
    except Undocumented as error:
        raise _undocumented(answer, error) from None


def read_page(item: type[T], answer: Answer) -> Page[T]:
    """Return the page of ``item`` that an answer holds. Raises `ApiError` if it does not."""
    try:
        page = _json(answer.content)
        _check(isinstance(page, dict), "#", "an object")
        items = _convert_list((item, ...), page.get("items"), "#/items")
        cursor = _convert(cast("type", str | None), page.get("next_cursor"), "#/next_cursor")
        return Page(items=items, next_cursor=cursor)
    except Undocumented as error:
        raise _undocumented(answer, error) from None


def read_published(answer: Answer) -> Published:
    """Return what was published."""
    try:
        given = _convert(_PublishedAnswer, _json(answer.content), "#")
    except Undocumented as error:
        raise _undocumented(answer, error) from None
    return Published(given.id, given.deliveries, given.duplicate)


def read_batch(answer: Answer) -> tuple[Published, ...]:
    """Return what was published, in the order of the batch."""
    given = read_page(_PublishedAnswer, answer)
    return tuple(Published(each.id, each.deliveries, each.duplicate) for each in given)


def read_object(answer: Answer) -> dict[str, Any]:
    """Return the JSON object that an answer is."""
    return cast("dict[str, Any]", read_result(cast("type", dict[str, Any]), answer))


def read_feed(answer: Answer) -> FeedPage:
    """Return a part of a feed with the exact bytes of its bodies."""
    try:
        page = _raw_members(answer.content)
        cursor = _convert(cast("type", str | None), _json(page["next_cursor"].encode()), "#")
        items = tuple(_feed_item(text) for text in _raw_list(page["items"]))
    except (KeyError, TypeError, ValueError, binascii.Error, Undocumented) as error:
        raise _undocumented(answer, error) from None
    return FeedPage(items=items, next_cursor=cursor)


def _feed_item(text: str) -> FeedItem:
    members = _raw_members(text.encode())
    raw = members.pop("body", "null")
    given = {name: _json(each.encode()) for name, each in members.items()}
    encoded = given.pop("body_base64", None)
    head = _convert(FeedEntry, given, "#/items")
    body = raw.encode() if encoded is None else base64.b64decode(encoded, validate=True)
    return FeedItem(**{each.name: getattr(head, each.name) for each in fields(head)}, body=body)


def _raw_list(text: str) -> list[str]:
    return [item.content.decode() for item in raw_items(text.encode())]


def read_event(answer: Answer) -> EventWithBody:
    """Return an event with its body's exact bytes, which parsing would change."""
    try:
        members = _raw_members(answer.content)
        raw = members.pop("body", "null")
        given = {name: _json(text.encode()) for name, text in members.items()}
        encoded = given.pop("body_base64", None)
        event = _convert(_EventHead, given, "#")
        body = raw.encode() if encoded is None else base64.b64decode(encoded, validate=True)
    except (TypeError, ValueError, binascii.Error, Undocumented) as error:
        raise _undocumented(answer, error) from None
    if len(body) != event.size:
        raise _undocumented(answer, Undocumented(f"#/body: not {event.size} bytes"))
    head = {each.name: getattr(event, each.name) for each in fields(event)}
    return EventWithBody(**head, body=body)


def read_contract(answer: Answer) -> Contract:
    """Return the wire contract of the service."""
    try:
        return Contract.from_json(answer.content)
    except SurehookError as error:
        raise _undocumented(answer, error) from None


def problem(
    answer: Answer, title: str, *, retry_after: float | None = None, tries: int = 1
) -> ApiError:
    """Return the error for an answer that is no success: its problem document (RFC 9457), or for
    want of one what there is."""
    try:
        document = _json(answer.content)
    except Undocumented:
        document = None
    request_id = answer.headers.get(REQUEST_ID)
    if not isinstance(document, dict) or not isinstance(document.get("type"), str):
        return ApiError(
            answer.status,
            _phrase(answer.status),
            f"{title}: {_without_problem(answer)}",
            request_id=request_id,
            retry_after=retry_after,
            tries=tries,
        )
    known = {name: document.pop(name, None) for name in ("type", "title", "detail", "errors")}
    return ApiError(
        answer.status,
        _text(known["title"], _phrase(answer.status)),
        _text(known["detail"], title),
        type=known["type"],
        faults=_faults(known["errors"]),
        members={name: document[name] for name in document if name != "status"},
        request_id=request_id,
        retry_after=retry_after,
        tries=tries,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _PublishedAnswer:
    id: str
    deliveries: tuple[str, ...]
    duplicate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _EventHead(Event):
    size: int


def _undocumented(answer: Answer, error: Exception) -> ApiError:
    detail = f"The answer is not as documented; is base_url that of the service? {error}"
    request_id = answer.headers.get(REQUEST_ID)
    return ApiError(answer.status, _phrase(answer.status), detail, request_id=request_id)


def _without_problem(answer: Answer) -> str:
    if 300 <= answer.status < 400:
        return "redirects are not followed; set base_url to the address that answers itself"
    text = answer.content[:MAX_EXCERPT].decode("utf-8", "replace")
    shown = "".join(each if each.isprintable() else " " for each in text)
    return f"no problem document, but {' '.join(shown.split())!r}" if shown else "no body"


def _faults(errors: object) -> tuple[Fault, ...]:
    if not isinstance(errors, list):
        return ()
    return tuple(
        Fault(_text(each.get("in")), _text(each.get("pointer")), _text(each.get("detail")))
        for each in errors
        if isinstance(each, dict)
    )


def _text(value: object, default: str = "") -> str:
    return value if isinstance(value, str) else default


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown status"


def _json(content: bytes) -> Any:
    try:
        return json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError):
        raise Undocumented("It is not JSON.") from None


def _raw_members(content: bytes) -> dict[str, str]:
    """The members of a JSON object as they are written."""
    decoder = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)
    members: dict[str, str] = {}
    try:
        text = content.decode("utf-8").strip(" \t\r\n")
        _check(isinstance(decoder.decode(text), dict), "#", "an object")
        at = _skip(text, 1)
        while text[at] != "}":
            name, at = decoder.raw_decode(text, at)
            start = _skip(text, at)
            _, at = decoder.raw_decode(text, start)
            members[name] = text[start:at]
            at = _skip(text, at)
    except (ValueError, RecursionError):
        raise Undocumented("It is not JSON.") from None
    return members


def _skip(text: str, at: int) -> int:
    found = _BETWEEN.match(text, at)
    return found.end() if found else at


@cache
def _hints(result: type) -> dict[str, Any]:
    hints = get_type_hints(result)
    return {each.name: hints[each.name] for each in fields(result)}


def _convert(kind: Any, value: Any, where: str) -> Any:
    """Return a JSON value as ``kind``, or raise `Undocumented`."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        inner = next(each for each in arguments if each is not types.NoneType)
        return None if value is None else _convert(inner, value, where)
    if origin is tuple:
        return _convert_list(arguments, value, where)
    if origin is dict:
        _check(isinstance(value, dict), where, "an object")
        return {name: _convert(arguments[1], each, where) for name, each in value.items()}
    if kind is Any:
        _check(value is not _MISSING, where, "a value")
        return value
    if kind is datetime:
        try:
            return parse_timestamp(value)
        except SurehookError as error:
            raise Undocumented(f"{where}: {error}") from None
    if kind is float:
        _check(type(value) in (int, float), where, "a number")
        return float(value)
    if kind is Any:
        return value
    if kind in (str, int, bool):
        _check(type(value) is kind, where, kind.__name__)
        return value
    _check(isinstance(value, dict), where, "an object")
    return kind(
        **{
            name: _convert(hint, value.get(name, _MISSING), f"{where}/{name}")
            for name, hint in _hints(kind).items()
        }
    )


_MISSING = object()


def _convert_list(arguments: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    _check(isinstance(value, list), where, "a list")
    kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else list(arguments)
    _check(len(kinds) == len(value), where, f"{len(kinds)} items")
    return tuple(
        _convert(kind, each, f"{where}/{index}")
        for index, (kind, each) in enumerate(zip(kinds, value, strict=True))
    )


def _check(is_right: bool, where: str, expected: str) -> None:
    if not is_right:
        raise Undocumented(f"{where}: expected {expected}")
