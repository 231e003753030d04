"""How providers prove that a request is theirs: one small function for each way of signing.

Each takes the request, the keys, the tolerance and now, checks headers, then timestamp, then
signature, and returns the signed time or None. It raises `SignatureError` or `RequestError` only.
All comparisons are of whole texts, as bytes, in constant time: one signature has one spelling.
"""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import wire.errors
from receiver.errors import RequestError, SignatureError
from receiver.message import parse_form, parse_json
from receiver.paths import Parsed, find
from receiver.request import Request
from wire.secrets import Secret
from wire.signature import HeaderNames
from wire.signature import verify as verify_standard

__all__ = ["Authenticate", "Check"]

MAX_ITEMS: Final = 100
"""Most notification items in one Adyen body, and most signatures in one header."""
_SECONDS: Final = re.compile(r"[0-9]{1,12}")
_URL: Final = re.compile(r"https?://[\x21-\x7e]+")


class Check(NamedTuple):
    """What a request is checked against: ``now`` is Unix seconds."""

    keys: Sequence[Any]
    now: float
    tolerance: timedelta


Authenticate = Callable[[Request, Check], datetime | None]


def standard(names: HeaderNames) -> Authenticate:
    """Standard Webhooks 1.0.0, by the code that signs them, in headers of these names."""

    def authenticate(request: Request, check: Check) -> datetime:
        headers = {name: request.headers.require(name) for name in names}
        keys: Sequence[Secret] = check.keys
        try:
            verified = verify_standard(
                keys,
                headers,
                request.body,
                now=check.now,
                tolerance=check.tolerance,
                header_names=names,
            )
        except wire.errors.VerificationError as error:
            raise SignatureError(str(error.reason), str(error)) from None
        return datetime.fromtimestamp(verified.timestamp, UTC)

    return authenticate


def over_body(header: str, *, prefix: str = "", encode: Callable[[bytes], bytes]) -> Authenticate:
    """HMAC-SHA256 over the body alone, in `header` after `prefix`. No time is signed."""

    def authenticate(request: Request, check: Check) -> None:
        given = request.headers.require(header)
        _compare(header, [given], prefix, check.keys, request.body, encode)

    return authenticate


def slack(request: Request, check: Check) -> datetime:
    """``v0=`` + hex over ``v0:{timestamp}:{body}``.

    Source: https://docs.slack.dev/authentication/verifying-requests-from-slack
    """
    given = request.headers.require("x-slack-signature")
    text = request.headers.require("x-slack-request-timestamp")
    signed_at = _timestamp("x-slack-request-timestamp", text, check)
    content = b"v0:%b:%b" % (text.encode("ascii"), request.body)
    _compare("x-slack-signature", [given], "v0=", check.keys, content, hex_digest)
    return signed_at


def stripe(request: Request, check: Check) -> datetime:
    """``t={timestamp},v1={hex}[,v1=…]`` over ``{timestamp}.{body}``; other schemes are ignored.

    Source: https://docs.stripe.com/webhooks/signature
    """
    header = "stripe-signature"
    pairs = [item.partition("=") for item in request.headers.require(header).split(",")]
    times = [value for name, _, value in pairs if name == "t"]
    given = [value for name, _, value in pairs if name == "v1"]
    if len(times) != 1 or not 1 <= len(given) <= MAX_ITEMS or not all(p[1] for p in pairs):
        raise SignatureError("signature_malformed", f"{header} is not t=…,v1=…")
    signed_at = _timestamp(f"{header}, t", times[0], check)
    content = b"%b.%b" % (times[0].encode("ascii"), request.body)
    _compare(header, given, "", check.keys, content, hex_digest)
    return signed_at


def twilio(request: Request, check: Check) -> None:
    """Base64 of HMAC-SHA1 over the URL and the sorted fields of a form.

    Of any other body the URL carries the SHA-256, as ``bodySHA256``. The URL counts with and
    without its port, as Twilio's libraries have it. Twilio joins names and values without anything
    between them, so the signature can't tell ``a=bc`` from ``ab=c``: that is theirs to mend.

    Source: https://www.twilio.com/docs/usage/security#validating-requests
    """
    header = "x-twilio-signature"
    given = request.headers.require(header)
    url = request.url
    if not url:
        raise RequestError("url_missing", "the request's URL is signed and has to be passed")
    if _URL.fullmatch(url) is None:
        raise RequestError("url_malformed", "the request's URL is not one in printable ASCII")
    try:
        other = _other_port(url)
        query = dict(parse_qsl(request.query, keep_blank_values=True, errors="strict"))
    except ValueError:
        raise RequestError("url_malformed", "the request's URL can't be read") from None
    fields = ""
    if "bodySHA256" in query:
        actual = sha256(request.body).hexdigest()
        if not same_text(actual, query["bodySHA256"]):
            raise SignatureError("signature_mismatch", "bodySHA256 is not that of the body")
    elif request.is_form:
        fields = _sorted_fields(request.body)
    elif request.body:
        raise SignatureError("header_missing", "the body is neither a form nor named in bodySHA256")
    for candidate in (url, other):
        content = (candidate + fields).encode()
        if any(
            same_text(given, base64_digest(hmac.digest(key, content, "sha1"))) for key in check.keys
        ):
            return
    raise SignatureError("signature_mismatch", f"{header} does not match the URL and the body")


def adyen(request: Request, check: Check) -> None:
    """Base64 of HMAC-SHA256 over eight fields, in each notification item of the body.

    The fields are joined with ``:`` and not escaped, so a colon is refused in all of them but the
    merchant's own reference: the text then has one reading. Nothing else in the body is signed.

    Source: https://docs.adyen.com/development-resources/webhooks/secure-webhooks/verify-hmac-signatures
    """
    body = parse_json(request.body)
    items = list(find(body, "notificationItems[].NotificationRequestItem"))
    listed = list(find(body, "notificationItems[]"))
    if not 1 <= len(items) <= MAX_ITEMS or len(items) != len(listed):
        raise RequestError("body_malformed", "notificationItems are missing or not readable")
    for item in items:
        given = next(find(item, "additionalData.hmacSignature"), None)
        if not isinstance(given, str):
            raise SignatureError("header_missing", "additionalData.hmacSignature is missing")
        content = _adyen_content(item).encode("utf-8", "surrogatepass")
        _compare("hmacSignature", [given], "", check.keys, content, base64_digest)


def secret_path(request: Request, check: Check) -> None:
    """Nothing is signed: a segment of the URL's path has to be one of the secrets."""
    segments = request.path.split("/")
    # Every segment with every secret, so that the time taken tells nothing.
    if not any([same_text(segment, key) for segment in segments for key in check.keys]):  # noqa: C419
        raise SignatureError("path_mismatch", "no segment of the URL's path is the secret")


def hex_digest(digest: bytes) -> bytes:
    """Lower-case hex, as ASCII."""
    return digest.hex().encode("ascii")


def base64_digest(digest: bytes) -> bytes:
    """Standard, padded base64, as ASCII."""
    return base64.b64encode(digest)


def seconds(text: str) -> int | None:
    """Unix seconds: ASCII digits only, at most 12 (int() takes far more); else None."""
    return int(text) if text.isascii() and _SECONDS.fullmatch(text) else None


def _timestamp(name: str, text: str, check: Check) -> datetime:
    value = seconds(text)
    if value is None:
        raise SignatureError("timestamp_malformed", f"{name} is not whole Unix seconds")
    if value < check.now - check.tolerance.total_seconds():
        raise SignatureError("timestamp_too_old", f"{name} is too old")
    if value > check.now + check.tolerance.total_seconds():
        raise SignatureError("timestamp_too_new", f"{name} is too new")
    return datetime.fromtimestamp(value, UTC)


def same_text(given: str | bytes, expected: str | bytes) -> bool:
    """Whether two texts are the same, in constant time and whatever is in them."""
    return hmac.compare_digest(_comparable(given), _comparable(expected))


def _comparable(text: str | bytes) -> bytes:
    # compare_digest raises for a str with anything but ASCII.
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")


def _compare(
    name: str,
    given: Iterable[str],
    prefix: str,
    keys: Sequence[bytes],
    content: bytes,
    encode: Callable[[bytes], bytes],
) -> None:
    expected = [
        prefix.encode("ascii") + encode(hmac.digest(key, content, "sha256")) for key in keys
    ]
    if not any([same_text(text, right) for text in given for right in expected]):  # noqa: C419
        raise SignatureError("signature_mismatch", f"the signature in {name} does not match")


def _other_port(url: str) -> str:
    """`url` without its port or, if it has none, with its scheme's."""
    parts = urlsplit(url)
    if parts.port is not None:
        return url.replace(parts.netloc, parts.netloc.rpartition(":")[0], 1)
    return url.replace(parts.netloc, f"{parts.netloc}:{443 if parts.scheme == 'https' else 80}", 1)


def _sorted_fields(body: bytes) -> str:
    fields: dict[str, set[str]] = {}
    for name, value in parse_form(body):
        fields.setdefault(name, set()).add(value)
    return "".join([name + value for name in sorted(fields) for value in sorted(fields[name])])


_ADYEN_FIELDS: Final[Mapping[str, bool]] = {
    # Path, and whether a colon may be in its value.
    "pspReference": False,
    "originalReference": False,
    "merchantAccountCode": False,
    "merchantReference": True,
    "amount.value": False,
    "amount.currency": False,
    "eventCode": False,
    "success": False,
}


def _adyen_content(item: Parsed) -> str:
    values = []
    for path, free in _ADYEN_FIELDS.items():
        value = next(find(item, path), "")
        if isinstance(value, bool):
            value = "true" if value else "false"
        elif not isinstance(value, (str, int)):
            raise RequestError("body_malformed", f"{path} is neither text nor a whole number")
        text = str(value)
        if ":" in text and not free:
            raise SignatureError("signature_malformed", f"{path} holds a colon")
        values.append(text)
    return ":".join(values)
