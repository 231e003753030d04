"""A request as the kit sees it, whatever the framework: raw bytes, and headers by any name case."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, Protocol, TypeAlias

from receiver.errors import NotBytesError, RequestError, SignatureError, TooLargeError

__all__ = ["Headers", "RawHeaders", "Request", "raw_bytes", "read_capped", "read_capped_async"]

RawHeaders: TypeAlias = Mapping[str, str] | Mapping[bytes, bytes] | Iterable[tuple[Any, Any]]
CHUNK: Final = 64 * 1024
MAX_HEADERS: Final = 1000


class Headers:
    """Header values by name, in any case of the letters.

    `raw` is a mapping or pairs, of str or bytes (read as Latin-1, as HTTP has it). A header that
    is there twice is refused when it is read: which one a proxy or a framework would pick is not
    to be guessed. Raises `RequestError` for anything else than headers.
    """

    __slots__ = ("_values",)

    def __init__(self, raw: RawHeaders) -> None:
        self._values: dict[str, list[str]] = {}
        items = getattr(raw, "items", None)
        try:
            pairs = items() if callable(items) else raw
            for count, (name, value) in enumerate(pairs):
                if count >= MAX_HEADERS:
                    raise RequestError("headers_unreadable", f"more than {MAX_HEADERS} headers")
                self._values.setdefault(_lower(_text(name)), []).append(_text(value))
        except (TypeError, ValueError) as error:
            if isinstance(error, RequestError):
                raise
            raise RequestError(
                "headers_unreadable", "headers must be a mapping or pairs, of str or bytes"
            ) from None

    def get(self, name: str) -> str | None:
        """The value of header `name`, or None. Raises `SignatureError` when it is repeated."""
        values = self._values.get(_lower(name))
        if not values:
            return None
        if len(values) > 1:
            raise SignatureError("header_repeated", f"header {name} is there more than once")
        return values[0]

    def require(self, name: str) -> str:
        """The value of header `name`. Raises `SignatureError` when it is missing or empty."""
        value = self.get(name)
        if not value:
            raise SignatureError("header_missing", f"header {name} is missing")
        return value

    def first(self, names: Iterable[str]) -> str | None:
        """The value of the first of `names` that is there and not empty, or None."""
        return next((value for name in names if (value := self.get(name))), None)


class Request:
    """One HTTP request, with its body read.

    `url` is the full URL with its query, as the provider used it; it matters for providers that
    sign it (Twilio), that hide a secret in it (Mercado Libre) or that ask with it (Meta's
    handshake), and may be left out otherwise. `body` is bytes; a str is taken as its UTF-8.

    Raises `NotBytesError` for a body that has been parsed already, and `RequestError` for a str
    that has no UTF-8.
    """

    __slots__ = ("body", "headers", "method", "url")

    def __init__(
        self, headers: RawHeaders | Headers, body: object, *, method: str = "POST", url: str = ""
    ) -> None:
        self.headers = headers if isinstance(headers, Headers) else Headers(headers)
        self.body = raw_bytes(body)
        self.method = method.upper()
        self.url = url

    def called_at(self, url: str) -> Request:
        """The same request, called at `url` by the provider: behind a proxy. The query is kept."""
        if self.url:
            url = url.partition("?")[0] + (f"?{self.query}" if self.query else "")
        return Request(self.headers, self.body, method=self.method, url=url)

    @property
    def path(self) -> str:
        """The URL's path, raw."""
        rest = self.url.partition("#")[0].partition("?")[0]
        authority, found, after = rest.partition("://")
        if not found:
            return authority
        return after[after.find("/") :] if "/" in after else ""

    @property
    def query(self) -> str:
        """The URL's query, raw, without the question mark."""
        return self.url.partition("#")[0].partition("?")[2]

    @property
    def is_form(self) -> bool:
        """Whether the content type says that the body is a URL-encoded form."""
        content_type = self.headers.get("content-type") or ""
        media_type = content_type.partition(";")[0].strip().lower()
        return media_type == "application/x-www-form-urlencoded"


def raw_bytes(body: object) -> bytes:
    """`body` as the bytes that were signed.

    Raises `NotBytesError` for anything but bytes and str, `RequestError` for a str without UTF-8.
    """
    if isinstance(body, bytes):
        return body
    try:
        if isinstance(body, (bytearray, memoryview)):
            return bytes(body)
        if isinstance(body, str):
            return body.encode()
    except ValueError:
        # A lone surrogate, or a memoryview that was released.
        raise RequestError("body_not_bytes", "the body can't be turned into bytes") from None
    raise NotBytesError(type(body).__name__)


class Readable(Protocol):
    """A stream such as ``wsgi.input``."""

    def read(self, size: int, /) -> bytes: ...


def read_capped(stream: Readable, limit: int, length: str | int | None = None) -> bytes:
    """Read `stream` to its end, but never more than `limit` + 1 bytes.

    `length` is the content-length header, if there is one: over the limit nothing is read at
    all. Raises `TooLargeError`.
    """
    _check_length(length, limit)
    chunks: list[bytes] = []
    room = limit + 1
    while room > 0 and (chunk := stream.read(min(CHUNK, room))):
        chunks.append(chunk)
        room -= len(chunk)
    if room <= 0:
        raise TooLargeError(limit)
    return b"".join(chunks)


async def read_capped_async(
    receive: Callable[[], Awaitable[Any]], limit: int, length: str | int | None = None
) -> bytes:
    """Read the body of an ASGI request through its `receive`, at most `limit` bytes.

    `length` is the content-length header, if there is one: over the limit nothing is read at
    all. Raises `TooLargeError` as soon as the limit is passed, and `RequestError` when the
    client goes away in the middle.
    """
    _check_length(length, limit)
    chunks: list[bytes] = []
    size = 0
    while True:
        event = await receive()
        if event["type"] != "http.request":
            raise RequestError("disconnected", "the client went away before the body ended")
        chunk = event.get("body") or b""
        size += len(chunk)
        if size > limit:
            raise TooLargeError(limit)
        chunks.append(chunk)
        if not event.get("more_body", False):
            return b"".join(chunks)


def _check_length(length: str | int | None, limit: int) -> None:
    text = "" if length is None else str(length)
    # A length that is no number is left to the server, which has refused it or reads on.
    if text.isascii() and text.isdigit() and (len(text) > 18 or int(text) > limit):
        raise TooLargeError(limit)


def _lower(name: str) -> str:
    # Only ASCII letters have a case here: the Kelvin sign must not turn into a "k".
    return name.lower() if name.isascii() else name


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("latin-1")
    raise TypeError
