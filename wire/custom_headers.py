"""Headers of an endpoint's own, such as an Authorization for the receiver's gateway."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from wire.errors import HeaderError
from wire.headers import FRAMING_NAMES, check_header_name, check_header_value
from wire.profiles import DEFAULT_PREFIX, PROFILES, HeaderProfile

MAX_COUNT: Final = 20
MAX_TOTAL: Final = 8192
"""Bytes of all names and values together; many servers refuse a head over 8 to 16 KiB."""


def check_custom_headers(
    headers: object, *, profiles: Collection[HeaderProfile] = (), prefix: str = DEFAULT_PREFIX
) -> dict[str, str]:
    """Return an endpoint's custom headers if they may be sent with every attempt.

    Refused are the names that HTTP itself uses, ``webhook-…``, every name under the prefix, and
    every name of the built-in and the given profiles: an endpoint must not overwrite a signature.

    Parameters:
        headers: A mapping of name and value; at most 20, at most 8 KiB together.
        profiles: The platform's own profiles, whose names are reserved too.
        prefix: The platform's header prefix.

    Raises:
        HeaderError: The message names the header, never its value.
    """
    if not isinstance(headers, Mapping):
        raise HeaderError("custom headers are an object of name and value")
    if len(headers) > MAX_COUNT:
        raise HeaderError(f"custom headers: at most {MAX_COUNT}")
    taken = {
        name.lower()
        for profile in (*PROFILES.values(), *profiles)
        for name in profile.names(prefix).values()
    }
    checked: dict[str, str] = {}
    seen: set[str] = set()
    for given, value in headers.items():
        name = check_header_name(given)
        lower = name.lower()
        if lower in seen:
            raise HeaderError(f"header {name}: given twice")
        if (
            lower in FRAMING_NAMES
            or lower in taken
            or lower.startswith(("webhook-", DEFAULT_PREFIX.lower(), prefix.lower()))
        ):
            raise HeaderError(f"header {name}: this name is reserved")
        seen.add(lower)
        checked[name] = check_header_value(name, value)
    if sum(len(name) + len(value) for name, value in checked.items()) > MAX_TOTAL:
        raise HeaderError(f"custom headers: at most {MAX_TOTAL} bytes together")
    return checked
