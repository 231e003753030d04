"""Types that the models of all resources share."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
)

from delivery_service.api.problems import not_found
from sender.filters import check_filter
from sender.matching import MAX_CHANNELS, check_channels, check_patterns
from sender.publish import MAX_KEY_LENGTH, MAX_TENANT_LENGTH, check_tenant
from wire.envelope import MAX_EVENT_TYPE, check_event_type, format_timestamp, parse_timestamp
from wire.errors import IdError, SurehookError
from wire.ids import parse_id
from wire.profiles import MAX_PROFILES, PROFILES, check_profiles
from wire.schedule import PRESETS, RetrySchedule

T = TypeVar("T")

DEFAULT_LIMIT = 50
MAX_LIMIT = 200
MAX_DESCRIPTION = 1000
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class Given(BaseModel):
    """What a caller gives: unknown members are refused, and types are not converted."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Shown(BaseModel):
    """What a caller is shown."""


class Parameters(BaseModel):
    """Query parameters: unknown ones are refused, so that a mistyped filter never means none."""

    model_config = ConfigDict(extra="forbid")


def checked(check: Callable[[Any], T]) -> AfterValidator:
    """A validator from a check that raises `SurehookError`."""

    def validate(value: Any) -> T:
        try:
            return check(value)
        except SurehookError as error:
            raise ValueError(str(error)) from None

    return AfterValidator(validate)


def check_text(value: str) -> str:
    """Return text without control characters other than line breaks and tabs."""
    found = _CONTROL.search(value)
    if found:
        raise ValueError(f"contains the control character U+{ord(found.group()):04X}")
    return value


def check_printable(value: str) -> str:
    """Return text that is printable, on one line."""
    if not value.isprintable():
        raise ValueError("must be printable characters only, on one line")
    return value


def _check_schedule(value: Any) -> str:
    # In one spelling, and never empty: an empty schedule is "[]", and not "none of its own".
    parsed = RetrySchedule.parse(value)
    return value.strip() if isinstance(value, str) and value.strip() in PRESETS else str(parsed)


def _check_profile_names(names: list[str]) -> list[str]:
    unknown = [name for name in names if name not in PROFILES]
    if unknown:
        raise ValueError(f"{unknown[0][:64]!r} is none of {', '.join(PROFILES)}")
    check_profiles([PROFILES[name] for name in names])
    return names


def _parse_moment(value: Any) -> datetime:
    try:
        return parse_timestamp(value)
    except SurehookError as error:
        raise ValueError(str(error).partition(": ")[2]) from None


def digits(value: Any) -> Any:
    """Refuse text that pydantic would take for a number, but no counting one."""
    if isinstance(value, str) and not re.fullmatch(r"[0-9]{1,6}", value, re.ASCII):
        raise ValueError("must be a whole number")
    return value


Text = Annotated[str, Field(max_length=MAX_DESCRIPTION), AfterValidator(check_text)]
"""Free text of several lines."""
Name = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(check_printable)]
"""A name for people, on one line."""
TenantId = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_TENANT_LENGTH,
        description="The platform's own id of a customer.",
        examples=["acme"],
    ),
    checked(check_tenant),
]
EventType = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_EVENT_TYPE,
        description="Segments of letters, digits, `_` and `-`, joined by dots.",
        examples=["invoice.paid"],
    ),
    checked(check_event_type),
]
IdempotencyKey = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_KEY_LENGTH,
        description="Unique per tenant: a repeat with the same content gives the first event.",
        examples=["invoice-1042-paid"],
    ),
    AfterValidator(check_printable),
]
Schedule = Annotated[
    str | list[float],
    Field(
        description="Delays between attempts: a preset (`default`, `standard-webhooks`, `fast`),"
        " a list such as `1m,5m,30m,2h,6h`, or a list of seconds.",
        examples=["1m,5m,30m,2h,6h"],
    ),
    checked(_check_schedule),
]
ProfileNames = Annotated[
    list[str],
    Field(
        min_length=1,
        max_length=MAX_PROFILES,
        description=f"Header profiles of every request: {', '.join(PROFILES)}.",
        examples=[["standard"]],
    ),
    checked(_check_profile_names),
]
Patterns = Annotated[
    list[str],
    Field(
        description="Event types to send: exact ones, `*`, or prefixes such as `invoice.*`. Empty"
        " means all.",
        examples=[["invoice.*", "customer.created"]],
    ),
    checked(check_patterns),
]
Channels = Annotated[
    list[str],
    Field(
        max_length=MAX_CHANNELS,
        description="Parts of a tenant, such as its projects. An endpoint that has channels gets"
        " only events with one of them; one without gets all.",
        examples=[["project:17"]],
    ),
    checked(check_channels),
]
PayloadFilter = Annotated[
    dict[str, Any],
    Field(
        description="What `data` must be like. A condition has a `path` (a JSON pointer into"
        " `data`) and operators: `eq`, `ne`, `in`, `gt`, `gte`, `lt`, `lte`, `prefix`, `exists`;"
        " `and`, `or` and `not` combine them. Raw bodies fit no filter.",
        examples=[{"and": [{"path": "/total", "gte": 100}, {"path": "/country", "in": ["DE"]}]}],
    ),
    checked(check_filter),
]
Moment = Annotated[
    datetime,
    BeforeValidator(_parse_moment),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""RFC 3339 with an offset, as given."""
UtcMoment = Annotated[
    datetime,
    PlainSerializer(format_timestamp, return_type=str),
    Field(examples=["2026-11-29T10:00:00Z"]),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""RFC 3339 in UTC, as shown."""
Limit = Annotated[
    int,
    BeforeValidator(digits),
    Field(ge=1, le=MAX_LIMIT, description="Most items of the page."),
]
Cursor = Annotated[
    str,
    Field(
        max_length=512,
        description="`next_cursor` of the page before.",
    ),
]


class PageParameters(Parameters):
    """Where in a list, and how much of it."""

    limit: Limit = DEFAULT_LIMIT
    cursor: Cursor | None = None


class Page(Shown, Generic[T]):
    """A part of a list. Each item is on one page only, even while items are being added."""

    items: list[T]
    next_cursor: str | None = Field(
        description="Give it as `cursor` for the next page; null on the last page."
    )


def id_pattern(prefix: str) -> dict[str, Any]:
    """JSON schema of an id."""
    return {"type": "string", "pattern": f"^{prefix}_[0-7][0-9A-HJKMNP-TV-Z]{{25}}$"}


def path_id(prefix: str, what: str) -> Any:
    """Validator of an id in a path: one that is malformed does not exist either."""

    def validate(value: str) -> str:
        try:
            return parse_id(value, prefix)
        except IdError:
            raise not_found(what) from None

    return AfterValidator(validate)


def filter_id(prefix: str) -> Any:
    """Validator of an id that a list is filtered by."""
    return checked(lambda value: parse_id(value, prefix))
