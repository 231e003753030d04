"""Secrets: one strict rule, errors that say what is wrong and never show the secret."""

# ruff: noqa: RUF001  (look-alike digits are the bad input here)

import base64
import copy
import logging

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from wire import SecretError, generate_secret, parse_secret, public_key
from wire.secrets import _SMALL_ORDER, HmacSecret, SigningKey, VerifyingKey

B64_24 = base64.b64encode(bytes(range(24))).decode()
GOOD = f"whsec_{B64_24}"
PAIR = (
    "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg=="
)
PUBLIC = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4="


def spell(prefix, size):
    return prefix + base64.b64encode(bytes(range(size))).decode()


def test_generated_secrets_are_accepted_and_differ():
    assert generate_secret() != generate_secret()
    assert len(base64.b64decode(generate_secret().removeprefix("whsec_"))) == 32
    for size in (24, 25, 26, 32, 64):
        assert isinstance(parse_secret(generate_secret(size=size)), HmacSecret)
    assert isinstance(parse_secret(generate_secret("whsk")), SigningKey)


@pytest.mark.parametrize("size", [0, -1, 16, 23, 65, 10**9, True, 32.0, "32", None])
def test_c07_generated_secrets_can_not_be_short(size):
    with pytest.raises(SecretError, match="size"):
        generate_secret(size=size)


def test_unknown_kinds_are_refused():
    with pytest.raises(SecretError, match="kind"):
        generate_secret("whpk")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "empty"),
        (None, "missing"),
        ("  ", "white space"),
        ("\t\n", "white space"),
        (f" {GOOD}", "white space"),
        (f"{GOOD}\n", "white space"),
        (f"{GOOD}\u00a0", "white space"),
        (f"whsec_ {B64_24}", "white space"),
        (f"whsec_{B64_24[:8]}\n{B64_24[8:]}", "white space"),
        (5, "int"),
        (GOOD.encode(), "bytes"),
        ([GOOD], "list"),
        (True, "bool"),
        (f"v1,{GOOD}", "'v1,'"),
        (f"v1a,{PAIR}", "'v1a,'"),
        (B64_24, "prefix"),
        ("hunter2", "prefix"),
        (f"WHSEC_{B64_24}", "prefix"),
        (f"whsec{B64_24}", "prefix"),
        (f"whse_{B64_24}", "prefix"),
        ("whsec_", "length"),
        ("whsk_", "length"),
        ("whpk_", "length"),
        ("whsec_QQ==", "length"),
        (spell("whsec_", 23), "length"),
        (spell("whsec_", 65), "length"),
        ("whsec_" + "A" * 10**6, "length"),
        (spell("whsk_", 32), "length"),
        (spell("whpk_", 31), "length"),
        (spell("whpk_", 64), "length"),
        ("whsec_!!!!", "alphabet"),
        (f"whsec_{B64_24[:-1]}é", "alphabet"),
        (f"whsec_{B64_24}\x00", "alphabet"),
        (f"whsec_{B64_24[:-1]}-", "URL-safe"),
        (f"whsec_{B64_24[:-1]}_", "URL-safe"),
        ("whsec_" + "\ud83d" * 32, "alphabet"),
        (f"whsec_{B64_24[:-1]}١", "alphabet"),
        (spell("whsec_", 25).rstrip("="), "padding"),
        (spell("whsec_", 25)[:-1], "padding"),
        (f"whsec_{B64_24}=", "padding"),
        (f"whsec_{B64_24}====", "padding"),
        (f"whsec_=={B64_24}==", "padding"),
        ("whsec_" + "QUJD" * 8 + "QUI=" + "QUJD", "padding"),
        ("whsec_====", "padding"),
        ("whsec_" + "QUJD" * 8 + "QUJ=", "padding"),
        ("whsec_" + "QUJD" * 8 + "QR==", "padding"),
        (PAIR[:-8] + "AAAAAA==", "public half"),
        ("whpk_" + "A" * 43 + "=", "degenerate"),
    ],
)
def test_c05_c07_c09_c11_bad_secrets_are_refused_with_what_is_wrong(text, named):
    with pytest.raises(SecretError) as caught:
        parse_secret(text)
    assert named in str(caught.value)
    assert B64_24[:12] not in str(caught.value)
    assert caught.value.__cause__ is None


@given(st.text() | st.from_regex(r"wh(sec|sk|pk)_[A-Za-z0-9+/=_-]*") | st.binary() | st.floats())
def test_any_value_is_a_secret_or_the_secret_error(value):
    try:
        parsed = parse_secret(value)
    except SecretError:
        return
    assert parsed.reveal() == value


@given(st.binary(min_size=24, max_size=64))
def test_a_secret_of_the_right_length_has_one_spelling(key):
    text = "whsec_" + base64.b64encode(key).decode()
    assert parse_secret(text).reveal() == text
    padding = text.count("=")
    if padding:
        with pytest.raises(SecretError, match="padding"):
            parse_secret(text.rstrip("="))


@pytest.mark.parametrize("text", [GOOD, PAIR, PUBLIC])
def test_no_secret_shows_in_repr_or_logs(text, caplog):
    secret = parse_secret(text)
    with caplog.at_level(logging.INFO):
        logging.getLogger("wire").info("%s %r %s", secret, [secret], {"key": secret})
    assert text not in caplog.text
    assert text.partition("_")[2][:10] not in caplog.text + f"{secret} {secret!r}"
    assert secret.reveal() == text
    assert parse_secret(secret) is secret


def test_secrets_compare_by_value():
    assert parse_secret(GOOD) == parse_secret(GOOD) == copy.copy(parse_secret(GOOD))
    assert parse_secret(GOOD) != parse_secret(PAIR)
    assert parse_secret(GOOD) != GOOD
    assert len({parse_secret(GOOD), parse_secret(GOOD), parse_secret(PUBLIC)}) == 2


def test_the_public_half_of_a_signing_key():
    assert public_key(PAIR) == PUBLIC == public_key(PUBLIC)
    assert isinstance(parse_secret(PUBLIC), VerifyingKey)
    with pytest.raises(SecretError, match="no public half"):
        public_key(GOOD)
    with pytest.raises(SecretError, match="only verifies"):
        parse_secret(PUBLIC).sign(b"x")


def test_c07_degenerate_public_keys_are_those_of_small_order():
    # y of the points whose order divides 8, computed on the curve: doubling three times gives 0.
    p = 2**255 - 19
    d = -121665 * pow(121666, -1, p) % p

    def double_y(y):
        # x² from the curve equation; y of the doubled point, RFC 8032 §5.1.
        x2 = (y * y - 1) * pow(d * y * y + 1, -1, p) % p
        return (y * y + x2) * pow(2 - (y * y - x2), -1, p) % p

    for raw in _SMALL_ORDER:
        y = int.from_bytes(raw, "little") % p
        assert double_y(double_y(double_y(y))) == 1
    assert len({int.from_bytes(raw, "little") % p for raw in _SMALL_ORDER}) == 5


def test_c07_a_degenerate_public_key_would_accept_a_forgery():
    identity = bytes([1]) + bytes(31)
    forged = identity + bytes(32)
    Ed25519PublicKey.from_public_bytes(identity).verify(forged, b"anything at all")
    with pytest.raises(SecretError, match="degenerate"):
        parse_secret("whpk_" + base64.b64encode(identity).decode())
