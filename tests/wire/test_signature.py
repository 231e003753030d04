"""Signatures: pinned vectors, another library, and every way a message can be wrong."""

# ruff: noqa: DTZ001, RUF001  (naive datetimes and look-alike digits are the bad input here)

import json
import pickle
from datetime import UTC, datetime, timedelta, timezone
from email.message import Message
from pathlib import Path
from types import MappingProxyType

import pytest
from standardwebhooks.webhooks import Webhook

from wire import (
    HeaderNames,
    Reason,
    SecretError,
    VerificationError,
    Verified,
    WireError,
    generate_secret,
    parse_secret,
    public_key,
    sign,
    verify,
)
from wire.body_signature import hmac_sha256_hex, verify_hmac_sha256_hex
from wire.errors import IdError
from wire.signature import MAX_SIGNATURES, sign_all

VECTORS = json.loads(
    (Path(__file__).parents[1] / "data" / "signatures.json").read_text(encoding="utf-8")
)
VALID = VECTORS["valid"]
FIRST = VALID[0]
SECRET = FIRST["secret"]
AT = FIRST["timestamp"]
BODY = FIRST["body"].encode()
GOOD = FIRST["signature"]


def body_of(vector):
    return bytes.fromhex(vector["body_hex"]) if "body_hex" in vector else vector["body"].encode()


def headers(signature=GOOD, id_=FIRST["id"], timestamp=AT):
    return {
        "webhook-id": id_,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signature,
    }


def reason_of(*args, **options):
    with pytest.raises(VerificationError) as caught:
        verify(*args, **options)
    assert str(caught.value)
    return caught.value.reason


@pytest.mark.parametrize("vector", VALID, ids=lambda vector: vector["name"])
def test_c06_pinned_vectors_are_reproduced_and_verify(vector):
    body = body_of(vector)
    assert sign(vector["secret"], vector["id"], vector["timestamp"], body) == vector["signature"]
    given = headers(vector["signature"], vector["id"], vector["timestamp"])
    for secret in {vector["secret"], vector.get("public", vector["secret"])}:
        verified = verify(secret, given, body, now=vector["timestamp"])
        assert verified == Verified(vector["id"], vector["timestamp"])
        assert (
            reason_of(secret, given, body + b" ", now=vector["timestamp"]) == "signature_mismatch"
        )


@pytest.mark.parametrize("signature", VECTORS["must_fail_against_official_1"])
def test_c04_c13_pinned_bad_signatures_fail_cleanly(signature):
    assert reason_of(SECRET, headers(signature), BODY, now=AT) is Reason.SIGNATURE_MISMATCH
    assert (
        reason_of(SECRET, headers(signature.encode("latin-1")), BODY, now=AT)
        is Reason.SIGNATURE_MISMATCH
    )


@pytest.mark.parametrize(
    "decoy", [*VECTORS["decoys_must_not_hide_a_valid_signature"], "v1,é", ",", "v1a,!"]
)
def test_c04_decoys_never_hide_a_valid_signature(decoy):
    for value in (f"{decoy} {GOOD}", f"{GOOD} {decoy}", f"{decoy}  {decoy} {GOOD} {decoy} "):
        assert verify(SECRET, headers(value), BODY, now=AT).id == FIRST["id"]


BODIES = [b"", b"{}", '{"tier":"🚀 é"}'.encode(), b'{"s":"\\u2028"}', "\u2028".encode(), b" \n"]


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("size", [24, 25, 26, 32, 64])
def test_a05_a16_c06_the_standardwebhooks_package_agrees_both_ways(body, size):
    secret, now = generate_secret(size=size), datetime.now(UTC)
    theirs = Webhook(secret)
    seconds = int(now.timestamp())
    ours = headers(sign(secret, "dlv_1", seconds, body), "dlv_1", seconds)
    theirs.verify(body, ours, json_parse=False)
    their_signature = theirs.sign("dlv_1", now, body.decode())
    assert verify(secret, headers(their_signature, "dlv_1", seconds), body).id == "dlv_1"


def test_c04_c06_rotated_secrets_verify_at_both_libraries():
    old, new, now = generate_secret(), generate_secret(), datetime.now(UTC)
    seconds = int(now.timestamp())
    both = headers(sign_all([new, old], "dlv_1", seconds, BODY), "dlv_1", seconds)
    for secret in (old, new):
        Webhook(secret).verify(BODY, both)
        assert verify(secret, both, BODY)
    single = headers(Webhook(old).sign("dlv_1", now, BODY.decode()), "dlv_1", seconds)
    assert verify([new, old], single, BODY)
    assert reason_of(new, single, BODY) is Reason.SIGNATURE_MISMATCH


def test_both_signature_kinds_at_once():
    shared, pair = parse_secret(generate_secret()), parse_secret(generate_secret("whsk"))
    value = sign_all([shared, pair], "dlv_1", AT, BODY)
    assert [token.split(",")[0] for token in value.split(" ")] == ["v1", "v1a"]
    for secret in (shared, pair, public_key(pair), [generate_secret(), public_key(pair)]):
        assert verify(secret, headers(value, "dlv_1"), BODY, now=AT)
    other = public_key(generate_secret("whsk"))
    assert reason_of(other, headers(value, "dlv_1"), BODY, now=AT) is Reason.SIGNATURE_MISMATCH


@pytest.mark.parametrize("tail", ["=", "\n", "A", ""])
def test_one_signature_has_one_spelling(tail):
    for vector in (VALID[0], VALID[2]):
        bent = (
            vector["signature"][:-1] + tail if not tail.strip("=") else vector["signature"] + tail
        )
        if bent == vector["signature"]:
            continue
        given = headers(bent, vector["id"], vector["timestamp"])
        assert reason_of(vector["secret"], given, body_of(vector), now=AT) == "signature_mismatch"


def test_spare_bits_of_an_ed25519_signature_are_no_second_spelling():
    vector = VALID[2]
    assert vector["signature"].endswith("Ag==")
    given = headers(vector["signature"].removesuffix("g==") + "h==", vector["id"])
    assert reason_of(vector["secret"], given, body_of(vector), now=AT) == "signature_mismatch"


def test_a01_parsed_bodies_are_refused_with_a_clear_error():
    raw = b'{"a": 1,"s":"caf\\u00e9"}'
    given = headers(sign(SECRET, "dlv_1", AT, raw), "dlv_1")
    assert verify(SECRET, given, raw, now=AT)
    with pytest.raises(VerificationError, match="raw bytes") as caught:
        verify(SECRET, given, json.loads(raw), now=AT)
    assert caught.value.reason is Reason.BODY_NOT_BYTES
    rewritten = json.dumps(json.loads(raw)).encode()
    assert reason_of(SECRET, given, rewritten, now=AT) is Reason.SIGNATURE_MISMATCH


@pytest.mark.parametrize("body", [b"", '{"é":"😱"}'.encode(), b"payload=%7B%22a%22%3A1%7D"])
def test_a09_a10_a16_any_body_and_any_spelling_of_its_bytes(body):
    given = headers(sign(SECRET, "dlv_1", AT, body), "dlv_1")
    for same in (body, body.decode(), bytearray(body), memoryview(body)):
        assert sign(SECRET, "dlv_1", AT, same) == given["webhook-signature"]
        assert verify(SECRET, given, same, now=AT)


def test_a06_escaped_and_raw_separators_both_verify_and_differ():
    signed = {sign(SECRET, "d", AT, body) for body in (b'"\\u2028"', '"\u2028"'.encode())}
    assert len(signed) == 2


def test_a13_key_order_matters_to_the_signature():
    one, two = b'{"a":1,"b":2}', b'{"b":2,"a":1}'
    given = headers(sign(SECRET, "d", AT, one), "d")
    assert reason_of(SECRET, given, two, now=AT) is Reason.SIGNATURE_MISMATCH


def message(pairs):
    given = Message()
    for name, value in pairs:
        given[name] = value
    return given


def forms(pairs):
    yield dict(pairs)
    yield pairs
    yield iter(pairs)
    yield ((name.encode(), value.encode()) for name, value in pairs)
    yield {name.encode(): value.encode() for name, value in pairs}
    yield MappingProxyType(dict(pairs))
    yield message(pairs)
    yield [*pairs, ("é", "é"), (b"\xff", b"\xff"), ("x", "")]


@pytest.mark.parametrize("case", [str.lower, str.title, str.upper])
def test_c01_headers_of_any_case_and_container_are_found(case):
    pairs = [(case(name), value) for name, value in headers().items()]
    for form in forms(pairs):
        assert verify(SECRET, form, BODY, now=AT)


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_c12_a_missing_header_is_an_error_and_so_is_a_repeated_one(name):
    given = headers()
    value = given.pop(name)
    assert reason_of(SECRET, given, BODY, now=AT) is Reason.HEADER_MISSING
    for repeated in ([(name, value)] * 2, [(name, value), (name.upper().encode(), b"x")]):
        pairs = [*given.items(), *repeated]
        assert reason_of(SECRET, pairs, BODY, now=AT) is Reason.HEADER_REPEATED
    assert reason_of(SECRET, {}, BODY, now=AT) is Reason.HEADER_MISSING
    empty = {**given, name: ""}
    assert reason_of(SECRET, empty, BODY, now=AT).endswith("_malformed")


def test_a_look_alike_header_name_is_another_header():
    given = headers()
    kelvin = {"webhoo\u212a-id": given.pop("webhook-id"), **given}
    assert reason_of(SECRET, kelvin, BODY, now=AT) is Reason.HEADER_MISSING


def endless():
    while True:
        yield ("x", "y")


@pytest.mark.parametrize(
    "given", [None, 5, "webhook-id", b"x", [1], [("a",)], [("a", "b", "c")], object()]
)
def test_unreadable_headers_are_the_one_error(given):
    assert reason_of(SECRET, given, BODY, now=AT) is Reason.HEADERS_UNREADABLE


def test_headers_and_signatures_examined_are_bounded():
    assert reason_of(SECRET, endless(), BODY, now=AT) is Reason.HEADERS_UNREADABLE
    most = " ".join(["v1,x"] * (MAX_SIGNATURES - 1) + [GOOD])
    assert verify(SECRET, headers(most), BODY, now=AT)
    assert reason_of(SECRET, headers("v1,x " + most), BODY, now=AT) is Reason.SIGNATURE_MALFORMED
    huge = headers("v1," + "A" * 10_000 + " " + GOOD)
    assert reason_of(SECRET, huge, BODY, now=AT) is Reason.SIGNATURE_MALFORMED
    assert reason_of(SECRET, headers("   "), BODY, now=AT) is Reason.SIGNATURE_MALFORMED


@pytest.mark.parametrize(
    "text",
    [
        "",
        "abc",
        f"{AT}abc",
        f" {AT}",
        f"{AT} ",
        f"{AT}\n",
        f"+{AT}",
        f"-{AT}",
        f"0{AT}",
        f"{AT}.0",
        "1_614_265_330",
        "１６１４２６５３３０",
        "nan",
        "inf",
        "-inf",
        "1e9",
        "0x10",
        "9" * 5000,
        "9" * 13,
        f"{AT}000",
        "\x00",
        "é",
        "١",
    ],
)
def test_c16_timestamps_are_ascii_digits_of_bounded_length(text):
    given = headers(timestamp=text)
    assert reason_of(SECRET, given, BODY, now=AT) is Reason.TIMESTAMP_MALFORMED


@pytest.mark.parametrize("now", [float(AT), AT, datetime.fromtimestamp(AT, UTC)])
def test_c14_timestamps_are_checked_both_ways_inclusively(now):
    delta = timedelta(seconds=1) if isinstance(now, datetime) else 1
    for offset in (-300, 0, 300):
        assert verify(SECRET, headers(), BODY, now=now + offset * delta)
    assert reason_of(SECRET, headers(), BODY, now=now + 301 * delta) is Reason.TIMESTAMP_TOO_OLD
    assert reason_of(SECRET, headers(), BODY, now=now - 301 * delta) is Reason.TIMESTAMP_TOO_NEW
    assert reason_of(SECRET, headers(), BODY) is Reason.TIMESTAMP_TOO_OLD
    exact = {"now": now + 10 * delta, "tolerance": timedelta(seconds=10)}
    assert verify(SECRET, headers(), BODY, **exact)
    assert reason_of(SECRET, headers(), BODY, now=now + 1 * delta, tolerance=timedelta(0))


def test_now_may_be_in_any_zone():
    zone = timezone(timedelta(hours=-8))
    assert verify(SECRET, headers(), BODY, now=datetime.fromtimestamp(AT, zone))


@pytest.mark.parametrize("now", [float("nan"), float("inf"), "x", True, datetime(2026, 1, 1)])
def test_an_unusable_now_is_not_the_senders_fault(now):
    with pytest.raises(WireError, match="now") as caught:
        verify(SECRET, headers(), BODY, now=now)
    assert not isinstance(caught.value, VerificationError)


@pytest.mark.parametrize("tolerance", [timedelta(seconds=-1), 300, None])
def test_an_unusable_tolerance_is_not_the_senders_fault(tolerance):
    with pytest.raises(WireError, match="tolerance"):
        verify(SECRET, headers(), BODY, now=AT, tolerance=tolerance)


@pytest.mark.parametrize(
    "secrets", ["", None, "  ", [], (), [""], [None], [SECRET, ""], b"x", 5, {}]
)
def test_c11_a_missing_secret_never_verifies_or_signs(secrets):
    with pytest.raises(SecretError):
        verify(secrets, headers(), BODY, now=AT)
    with pytest.raises(SecretError):
        sign_all(secrets, "dlv_1", AT, BODY)


def test_g05_c17_id_and_timestamp_are_signed():
    assert reason_of(SECRET, headers(id_="dlv_2"), BODY, now=AT) is Reason.SIGNATURE_MISMATCH
    shifted = headers(timestamp=AT + 1)
    assert reason_of(SECRET, shifted, BODY, now=AT) is Reason.SIGNATURE_MISMATCH
    assert sign(SECRET, "d", AT, BODY) != sign(SECRET, "d", AT + 360, BODY)


@pytest.mark.parametrize("id_", ["", " ", "a b", "a.b", "é", "a\n", "a\x00", "x" * 256])
def test_ids_are_tokens_without_a_dot(id_):
    assert reason_of(SECRET, headers(id_=id_), BODY, now=AT) is Reason.ID_MALFORMED
    with pytest.raises(IdError):
        sign(SECRET, id_, AT, BODY)


def test_g05_dots_can_not_be_moved_between_id_timestamp_and_body():
    body = f"{AT}.x".encode()
    given = headers(sign(SECRET, "d", 5, body), f"d.{5}", AT)
    assert reason_of(SECRET, given, b"x", now=AT) is Reason.ID_MALFORMED


@pytest.mark.parametrize("timestamp", [-1, 10**12, 1.5, "1", None, True])
def test_only_unix_seconds_are_signed(timestamp):
    with pytest.raises(WireError, match="timestamp"):
        sign(SECRET, "d", timestamp, BODY)


def test_other_header_names():
    names = HeaderNames("Svix-Id", "Svix-Timestamp", "Svix-Signature")
    given = {name.replace("webhook", "svix"): value for name, value in headers().items()}
    assert verify(SECRET, given, BODY, now=AT, header_names=names)
    assert reason_of(SECRET, headers(), BODY, now=AT, header_names=names) == "header_missing"


def test_verification_errors_travel_between_processes():
    with pytest.raises(VerificationError) as caught:
        verify(SECRET, {}, BODY, now=AT)
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (copied.reason, str(copied)) == (caught.value.reason, str(caught.value))


@pytest.mark.parametrize("vector", VECTORS["providers"], ids=lambda vector: vector["name"])
def test_sha256_hex_vectors_of_providers(vector):
    body = vector["body"].encode()
    for secret in (vector["secret"], vector["secret"].encode()):
        assert hmac_sha256_hex(secret, body) == vector["signature"]
        verify_hmac_sha256_hex(secret, vector["signature"], body)
    verify_hmac_sha256_hex(
        ["other", vector["secret"]], vector["signature"].encode(), vector["body"]
    )
    with pytest.raises(VerificationError) as caught:
        verify_hmac_sha256_hex("other", vector["signature"], body)
    assert caught.value.reason is Reason.SIGNATURE_MISMATCH


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "header_missing"),
        (5, "headers_unreadable"),
        ("", "signature_malformed"),
        ("é", "signature_malformed"),
        (b"\xe9", "signature_malformed"),
        ("sha256=", "signature_malformed"),
        ("sha256=" + "0" * 63, "signature_malformed"),
        ("sha1=" + "0" * 40, "signature_malformed"),
        ("sha256=" + "0" * 64 + "\n", "signature_malformed"),
        ("sha256=" + "０" * 64, "signature_malformed"),
        ("sha256=" + "0" * 64, "signature_mismatch"),
    ],
)
def test_c12_c13_bad_sha256_hex_signatures_fail_cleanly(value, reason):
    with pytest.raises(VerificationError) as caught:
        verify_hmac_sha256_hex("secret", value, b"body")
    assert caught.value.reason == reason


@pytest.mark.parametrize("secret", ["", " ", b"", None, 5, [], "\ud800", "x" * 2000])
def test_c11_sha256_hex_needs_a_secret(secret):
    with pytest.raises(SecretError):
        verify_hmac_sha256_hex(secret, "sha256=" + "0" * 64, b"")
    with pytest.raises(SecretError):
        hmac_sha256_hex(secret, b"")
