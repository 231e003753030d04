"""What a receiver answers, independent of framework, and how it is remembered."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

from receiver.errors import VerificationError

__all__ = ["Answer"]

JSON: Final = "application/json"
PLAIN: Final = "text/plain; charset=utf-8"
BINARY: Final = "application/octet-stream"
_REMEMBERED: Final = re.compile(rb"(2[0-9]{2}) ([\x20-\x7e]*)\n")


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer. A handler may return one; anything but a 2xx counts as a failure."""

    status: int = 200
    body: bytes = b""
    content_type: str = ""
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def accepted(self) -> bool:
        """Whether it is a 2xx."""
        return 200 <= self.status < 300

    def all_headers(self) -> list[tuple[str, str]]:
        """Every header, with content type and length."""
        headers = [("content-length", str(len(self.body))), *self.headers]
        if self.content_type:
            headers.append(("content-type", self.content_type))
        return headers

    def remember(self) -> bytes | None:
        """What a gate should store of it; None for an empty 200."""
        if self.status == 200 and not self.body:
            return None
        return f"{self.status} {self.content_type}\n".encode("ascii", "replace") + self.body

    @classmethod
    def recall(cls, stored: bytes | None) -> Answer:
        """The answer that was stored; a plain 200 for nothing, or for what others stored."""
        match = _REMEMBERED.match(stored or b"")
        if stored is None or match is None:
            return cls(200, stored or b"", BINARY if stored else "")
        return cls(int(match[1]), stored[match.end() :], match[2].decode("ascii"))


def problem(status: int, reason: str, detail: str = "", retry_after: float | None = None) -> Answer:
    """An error as RFC 9457 problem details; `retry_after` is in seconds."""
    content = {"type": "about:blank", "status": status, "title": reason}
    if detail:
        content["detail"] = detail
    headers: tuple[tuple[str, str], ...] = ()
    if retry_after is not None:
        headers = (("retry-after", str(max(1, -int(-retry_after // 1)))),)
    body = json.dumps(content).encode()
    return Answer(status, body, "application/problem+json", headers)


def refusal(error: VerificationError) -> Answer:
    """The answer to a request that does not verify."""
    return problem(error.status, error.reason, str(error))


def from_result(result: object, accepted: bytes = b"") -> Answer:
    """What a handler returned, as an answer. Never raises: the effect has happened.

    None is an empty 200 (with the body `accepted`); text, bytes and JSON content are a 200 with
    that body; responses of Starlette, Flask and Django, and `Answer`, are what they say.
    """
    if isinstance(result, Answer):
        return result
    if isinstance(result, (bytes, bytearray)):
        return Answer(200, bytes(result), BINARY)
    if isinstance(result, str):
        return Answer(200, result.encode("utf-8", "replace"), PLAIN)
    if isinstance(result, (dict, list)):
        try:
            return Answer(200, json.dumps(result, default=str).encode(), JSON)
        except (TypeError, ValueError, RecursionError):
            return Answer(200, accepted, PLAIN if accepted else "")
    status = getattr(result, "status_code", None)
    if isinstance(status, int):
        return Answer(status, _response_body(result), _content_type(result))
    return Answer(200, accepted, PLAIN if accepted else "")


def _response_body(response: object) -> bytes:
    get_data = getattr(response, "get_data", None)
    for body in (get_data() if callable(get_data) else None, getattr(response, "body", None)):
        if isinstance(body, (bytes, bytearray, memoryview)):
            return bytes(body)
    content = getattr(response, "content", None)
    return content if isinstance(content, bytes) else b""


def _content_type(response: object) -> str:
    find = getattr(getattr(response, "headers", None), "get", None)
    value = find("content-type") if callable(find) else None
    return value if isinstance(value, str) and value.isascii() and value.isprintable() else ""
