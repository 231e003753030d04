"""Verifiers: secrets, headers, what is expected, the order of the checks."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from receiver.errors import (
    ConfigurationError,
    NotBytesError,
    RequestError,
    SignatureError,
    TooLargeError,
    VerificationError,
)
from receiver.providers import body_hmac
from receiver.request import Request
from receiver.verify import Verifier
from tests.receiver import samples
from tests.receiver.samples import ADYEN_KEY, NOW, PATH_SECRET, SAMPLES, WHSEC, Sample
from wire.body_signature import hmac_sha256_hex
from wire.errors import SecretError, SurehookError
from wire.errors import VerificationError as WireVerificationError
from wire.signature import HeaderNames

PROVIDERS: dict[str, Callable[..., Verifier]] = {
    "standard": Verifier.standard,
    "stripe": Verifier.stripe,
    "github": Verifier.github,
    "shopify": Verifier.shopify,
    "slack": Verifier.slack,
    "meta": Verifier.meta,
    "twilio": Verifier.twilio,
    "adyen": Verifier.adyen,
    "mercado_libre": lambda secret: Verifier.mercado_libre(secret, applications=1, types="a"),
}


def resigned(sample: Sample, secret: str) -> Verifier:
    return PROVIDERS[sample.verifier.source](secret)


# The wrong bytes


@pytest.mark.parametrize("body", [{"a": 1}, [1], None, 7, object()])
def test_a01_a_parsed_body_is_refused_with_a_clear_error(body: Any) -> None:
    sample = samples.standard()
    with pytest.raises(NotBytesError, match="raw bytes") as caught:
        sample.verify(body=body)
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, VerificationError)
    assert caught.value.status == 400


def test_a01_the_bytes_count_not_the_value() -> None:
    body = rb'{"a": 1,"s":"caf\u00e9"}'
    sample = samples.standard(body)
    assert sample.verify().json() == {"a": 1, "s": "café"}
    with pytest.raises(SignatureError):
        sample.verify(body='{"a":1,"s":"café"}'.encode())


@pytest.mark.parametrize("make", [samples.standard, samples.github, samples.stripe])
@pytest.mark.parametrize(
    "body",
    [
        '{"id":"1","tier":"🚀"}'.encode(),
        b'{"id":"1","tel":"\\u2028\\u2028555"}',
        '{"id":"1","tel":"\u2028\u2028555"}'.encode(),
        b'{"id":"1","weight":64.0}',
        b'{"id":"1","n":8202522731445525542}',
    ],
    ids=["a05-emoji", "a06-escaped", "a06-raw", "a08-64.0", "b02-64-bit"],
)
def test_a05_a06_a08_bytes_are_never_rewritten(
    make: Callable[[bytes], Sample], body: bytes
) -> None:
    message = make(body).verify()
    assert message.body == body


def test_b02_a_64_bit_id_stays_exact() -> None:
    message = samples.standard(b'{"id":8202522731445525542}').verify()
    assert message.json()["id"] == 8202522731445525542


@pytest.mark.parametrize("make", [samples.standard, samples.github, samples.shopify])
def test_a09_a_form_is_verified_as_it_came(make: Callable[[bytes], Sample]) -> None:
    sample = make(b"payload=%7B%22a%22%3A1%7D")
    sample.headers["Content-Type"] = "application/x-www-form-urlencoded"
    assert sample.verify().data == {"payload": '{"a":1}'}


@pytest.mark.parametrize("name", SAMPLES)
def test_a10_bytes_and_str_of_a_body_give_the_same(name: str) -> None:
    sample = SAMPLES[name]()
    assert sample.verify(body=sample.body.decode()).keys == sample.verify().keys
    assert sample.verify(body=bytearray(sample.body)).keys == sample.verify().keys


def test_a10_text_without_utf8_is_the_one_error() -> None:
    with pytest.raises(VerificationError):
        samples.standard().verify(body="\ud83d")


def test_a13_two_key_orders_are_two_messages_bodies() -> None:
    one, other = samples.standard(b'{"a":1,"b":2}'), samples.standard(b'{"b":2,"a":1}')
    assert one.verify().fingerprint != other.verify().fingerprint
    with pytest.raises(SignatureError):
        one.verify(body=other.body)


def test_a16_an_empty_body_verifies_and_parsing_is_a_step_of_its_own() -> None:
    message = samples.standard(b"").verify()
    assert message.body == b""
    assert message.type is None
    with pytest.raises(RequestError) as caught:
        message.json()
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "body", [b"1" * 5000, b"[" * 100_000, b"NaN", b'{"a":Infinity}', b"\xff", "é".encode("utf-16")]
)
def test_a16_content_that_is_not_json_is_the_one_error(body: bytes) -> None:
    with pytest.raises(RequestError, match="not JSON"):
        samples.standard(body).verify().json()


# Secrets


@pytest.mark.parametrize("name", PROVIDERS)
@pytest.mark.parametrize("secret", ["", None, "   ", "\n", b"", [], [""], 7, "\ud83d"])
def test_c11_without_a_secret_there_is_no_verifier(name: str, secret: Any) -> None:
    with pytest.raises(SecretError):
        PROVIDERS[name](secret)


def test_c05_the_bad_prefix_is_named() -> None:
    with pytest.raises(SecretError, match="v1,"):
        Verifier.standard(f"v1,{WHSEC}")


@pytest.mark.parametrize("secret", ["whsec_!!!!", "whsec_", "whsec_QQ==", "whsec_QUJDRA"])
def test_c07_c09_junk_or_unpadded_secrets_are_refused(secret: str) -> None:
    with pytest.raises(SecretError):
        Verifier.standard(secret)


def test_c06_verifies_what_the_reference_library_signs() -> None:
    from standardwebhooks.webhooks import Webhook

    signed_at = datetime.fromtimestamp(NOW, UTC)
    body = '{"test": 2432232314}'
    headers = {
        "webhook-id": "msg_9",
        "webhook-timestamp": str(NOW),
        "webhook-signature": Webhook(WHSEC).sign("msg_9", signed_at, body),
    }
    assert Verifier.standard(WHSEC).verify(headers, body, now=signed_at).id == "msg_9"


@pytest.mark.parametrize(
    ("make", "secret"),
    [
        (Verifier.adyen, ADYEN_KEY[:-1]),
        (Verifier.adyen, "zz" * 32),
        (Verifier.adyen, "44782DEF"),
        (Verifier.github, "hush\n"),
        (PROVIDERS["mercado_libre"], "short"),
        (PROVIDERS["mercado_libre"], "a/segment/and/another/one"),
    ],
)
def test_c07_secrets_that_are_mistyped_or_guessable(make: Any, secret: str) -> None:
    with pytest.raises(SecretError) as caught:
        make(secret)
    assert secret not in str(caught.value)


@pytest.mark.parametrize("name", SAMPLES)
def test_c04_one_of_several_secrets_is_enough(name: str) -> None:
    sample = SAMPLES[name]()
    known = {
        "standard": WHSEC,
        "stripe": "whsec_test_secret",
        "twilio": "12345",
        "adyen": ADYEN_KEY,
        "mercado_libre": PATH_SECRET,
    }.get(name, "hush")
    other = {
        "standard": "whsec_" + base64.b64encode(b"x" * 24).decode(),
        "adyen": "ab" * 32,
        "mercado_libre": "another-long-secret",
    }.get(name, "another")
    settings: dict[str, Any] = {}
    if name == "mercado_libre":
        settings = {"applications": 5503910054141466, "types": "orders_v2"}
    make = getattr(Verifier, name)
    for secrets in ([known, other], (other, known)):
        verifier = make(secrets, **settings)
        assert verifier.verify(sample.headers, sample.body, url=sample.url, now=NOW)
    with pytest.raises(SignatureError):
        make(other, **settings).verify(sample.headers, sample.body, url=sample.url, now=NOW)


def test_c04_several_signatures_in_a_stripe_header() -> None:
    sample = samples.stripe()
    time, right = sample.headers["Stripe-Signature"].split(",")
    header = f"{time},v1={'0' * 64},v0={'1' * 64},{right}"
    assert sample.verify(headers={"stripe-signature": header})


# Headers


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("spell", [str.lower, str.upper, str.title])
def test_c01_headers_are_found_in_any_case(name: str, spell: Callable[[str], str]) -> None:
    sample = SAMPLES[name]()
    headers = {spell(header): value for header, value in sample.headers.items()}
    assert sample.verify(headers=headers).keys == sample.verify().keys


@pytest.mark.parametrize("name", SAMPLES)
def test_c01_headers_may_be_pairs_of_bytes(name: str) -> None:
    sample = SAMPLES[name]()
    pairs = [(n.encode(), v.encode()) for n, v in sample.headers.items()]
    assert sample.verify(headers=pairs).keys == sample.verify().keys


@pytest.mark.parametrize("name", [name for name in SAMPLES if SAMPLES[name]().signed])
def test_c12_a_missing_or_empty_signature_is_refused(name: str) -> None:
    sample = SAMPLES[name]()
    for header in sample.signed:
        for headers in (
            {n: v for n, v in sample.headers.items() if n != header},
            sample.headers | {header: ""},
        ):
            with pytest.raises(SignatureError) as caught:
                sample.verify(headers=headers)
            assert caught.value.status == 401
    with pytest.raises(VerificationError):
        sample.verify(headers={})


def test_c12_adyen_items_without_a_signature_are_refused() -> None:
    item = samples.ADYEN_ITEM | {"additionalData": {}}
    with pytest.raises(SignatureError):
        samples.adyen(samples.ADYEN_ITEM, item).verify()


def test_adyen_one_forged_item_among_genuine_ones_is_refused() -> None:
    forged = samples.ADYEN_ITEM | {"amount": {"value": 500000, "currency": "EUR"}}
    with pytest.raises(SignatureError):
        samples.adyen(samples.ADYEN_ITEM, forged).verify()


def test_adyen_fields_can_not_shift_over_a_colon() -> None:
    item = samples.adyen_signed(merchantReference="INV:42")
    assert samples.adyen(item).verify()
    shifted = item | {"merchantAccountCode": "TestMerchant:INV", "merchantReference": "42"}
    with pytest.raises(SignatureError):
        samples.adyen(shifted).verify()


@pytest.mark.parametrize("name", [name for name in SAMPLES if SAMPLES[name]().signed])
@pytest.mark.parametrize("junk", ["v1,é", "é", "v0=\xff", "sha256=é", "\x00", "t=é,v1=é", "😱"])
def test_c13_a_byte_that_is_not_ascii_is_the_one_error(name: str, junk: str) -> None:
    sample = SAMPLES[name]()
    for header in sample.signed:
        with pytest.raises(SignatureError):
            sample.verify(headers=sample.headers | {header: junk})


@pytest.mark.parametrize("name", ["standard", "stripe", "slack"])
def test_c14_timestamps_are_refused_on_both_sides(name: str) -> None:
    sample = SAMPLES[name]()
    for away in (-600, 600):
        with pytest.raises(SignatureError) as caught:
            sample.verify(now=NOW + away)
        assert "timestamp" in caught.value.reason


@pytest.mark.parametrize(
    "text",
    [
        "1700000000abc",
        "1_700_000_000",
        "\uff11\uff17\uff10\uff10",
        " 1700000000\n",
        "+1700000000",
        "-1",
        "nan",
        "inf",
        "1e9",
        "1700000000.0",
        "9" * 5000,
        "",
    ],
)
def test_c16_a_timestamp_is_ascii_digits_of_bounded_length(text: str) -> None:
    for sample, header, value in (
        (samples.standard(), "webhook-timestamp", text),
        (samples.slack(), "X-Slack-Request-Timestamp", text),
        (samples.stripe(), "Stripe-Signature", f"t={text},v1={'0' * 64}"),
    ):
        with pytest.raises(SignatureError):
            sample.verify(headers=sample.headers | {header: value})


def test_a_repeated_header_is_refused() -> None:
    sample = samples.standard()
    for name, value in sample.headers.items():
        with pytest.raises(SignatureError) as caught:
            sample.verify(headers=[*sample.headers.items(), (name.upper(), value)])
        assert caught.value.reason == "header_repeated"


def test_only_ascii_letters_have_a_case() -> None:
    sample = samples.standard()
    kelvin = {name.replace("k", "\u212a"): value for name, value in sample.headers.items()}
    with pytest.raises(SignatureError):
        sample.verify(headers=kelvin)


@pytest.mark.parametrize("headers", [None, 7, "text", [1], [("a", 1)], {1: "a"}, [("a", "b", "c")]])
def test_headers_of_another_shape_are_the_one_error(headers: Any) -> None:
    with pytest.raises(VerificationError):
        samples.standard().verify(headers=headers)


def test_g05_a_replay_under_another_id_fails() -> None:
    sample = samples.standard()
    with pytest.raises(SignatureError):
        sample.verify(headers=sample.headers | {"webhook-id": "msg_2"})


def test_headers_of_standard_webhooks_under_other_names() -> None:
    sample = samples.standard()
    renamed = {n.replace("webhook-", "svix-"): v for n, v in sample.headers.items()}
    names = HeaderNames("svix-id", "svix-timestamp", "svix-signature")
    verifier = Verifier.standard(WHSEC, names=names)
    assert verifier.verify(renamed, sample.body, now=NOW).id == "msg_1"
    with pytest.raises(SignatureError):
        verifier.verify(sample.headers, sample.body, now=NOW)


def test_surehooks_profile_that_signs_the_body_alone() -> None:
    body = b'{"id":"evt_1"}'
    headers = {
        "X-Idempotency-Key": "dlv_1",
        "X-Event-Type": "invoice.paid",
        "X-Signature-256": hmac_sha256_hex(WHSEC, body),
    }
    provider = body_hmac("surehook", header="x-signature-256", type_at="header:x-event-type")
    message = Verifier(provider, WHSEC, types="invoice.paid").verify(headers, body)
    assert (message.key, message.type) == ("surehook::dlv_1", "invoice.paid")
    with pytest.raises(SignatureError):
        Verifier(provider, WHSEC).verify(headers, body + b" ")


# What is expected


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (Verifier.standard, {"types": "invoice.void"}),
        (Verifier.stripe, {"types": ["a", "b"]}),
        (Verifier.stripe, {"tenants": "acct_2"}),
        (Verifier.github, {"types": "push"}),
        (Verifier.github, {"applications": 1}),
        (Verifier.github, {"tenants": 8}),
        (Verifier.shopify, {"types": "orders/paid"}),
        (Verifier.shopify, {"tenants": "other.example"}),
        (Verifier.slack, {"applications": "A2"}),
        (Verifier.slack, {"tenants": "T2"}),
        (Verifier.meta, {"types": "page"}),
        (Verifier.meta, {"tenants": "OTHER"}),
        (Verifier.twilio, {"tenants": "AC2"}),
        (Verifier.twilio, {"applications": "AP1"}),
        (Verifier.adyen, {"tenants": "OtherMerchant"}),
    ],
)
def test_what_is_not_expected_here_is_a_400(make: Any, settings: dict[str, Any]) -> None:
    sample = SAMPLES[make.__name__]()
    secrets = {"standard": WHSEC, "stripe": "whsec_test_secret", "adyen": ADYEN_KEY}
    secret = secrets.get(make.__name__, "12345" if make.__name__ == "twilio" else "hush")
    verifier = make(secret, **settings)
    with pytest.raises(RequestError, match="not expected here") as caught:
        verifier.verify(sample.headers, sample.body, url=sample.url, now=NOW)
    assert caught.value.status == 400
    # A wrong signature comes first: nobody learns what is expected by trying.
    wrong = dict.fromkeys(sample.headers, "0")
    with pytest.raises(VerificationError) as caught_first:
        verifier.verify(wrong, sample.body, url=sample.url, now=NOW)
    assert caught_first.value.status == 401 or sample.verifier.source == "adyen"


def test_what_is_expected_passes() -> None:
    sample = samples.github()
    verifier = Verifier.github("hush", types=["push", "issues"], applications=79929171, tenants=7)
    assert verifier.verify(sample.headers, sample.body).type == "issues"
    sample = samples.slack()
    verifier = Verifier.slack("hush", types="message", applications="A1", tenants=["T1"])
    assert verifier.verify(sample.headers, sample.body, now=NOW).type == "message"


def test_every_item_has_to_be_expected() -> None:
    other = samples.adyen_signed(merchantAccountCode="Other", pspReference="2")
    sample = samples.adyen(samples.ADYEN_ITEM, other)
    with pytest.raises(RequestError):
        Verifier.adyen(ADYEN_KEY, tenants="TestMerchant").verify({}, sample.body)
    assert Verifier.adyen(ADYEN_KEY, tenants=["TestMerchant", "Other"]).verify({}, sample.body)


def test_an_unsigned_sender_needs_path_application_and_topic() -> None:
    with pytest.raises(ConfigurationError, match="applications"):
        Verifier.mercado_libre(PATH_SECRET, types="orders_v2")
    with pytest.raises(ConfigurationError, match="types"):
        Verifier.mercado_libre(PATH_SECRET, applications=1)
    sample = samples.mercado_libre()
    assert sample.verify().type == "orders_v2"
    for url in ("", "https://shop.example/hooks/meli", f"https://x/hooks?{PATH_SECRET}"):
        with pytest.raises(SignatureError) as caught:
            sample.verify(url=url)
        assert caught.value.status == 401


# Size, method, clock, handshakes


def test_g10_a_body_over_the_limit_is_413_before_anything_else() -> None:
    sample = samples.standard()
    verifier = Verifier.standard(WHSEC, max_body=len(sample.body))
    assert verifier.verify(sample.headers, sample.body, now=NOW)
    with pytest.raises(TooLargeError) as caught:
        verifier.verify({}, sample.body + b" ", now=NOW)
    assert caught.value.status == 413


def test_the_clock_can_be_injected() -> None:
    sample = samples.standard()
    at = [float(NOW)]
    verifier = Verifier.standard(WHSEC, clock=lambda: at[0], tolerance=timedelta(seconds=10))
    assert verifier.verify(sample.headers, sample.body)
    at[0] += 10.5
    with pytest.raises(SignatureError):
        verifier.verify(sample.headers, sample.body)
    aware = datetime.fromtimestamp(NOW, UTC)
    assert verifier.verify(sample.headers, sample.body, now=aware)
    with pytest.raises(ConfigurationError, match="time zone"):
        verifier.verify(sample.headers, sample.body, now=aware.replace(tzinfo=None))


def test_metas_handshake_needs_the_token() -> None:
    verifier = samples.meta().verifier
    for query in (
        "hub.mode=subscribe&hub.challenge=1&hub.verify_token=wrong",
        "hub.mode=unsubscribe&hub.challenge=1&hub.verify_token=meatyhamhock",
        "hub.challenge=1",
        "hub.mode=subscribe&hub.challenge=1&hub.verify_token=%ff",
    ):
        with pytest.raises(VerificationError):
            verifier.handshake(Request({}, b"", method="GET", url=f"https://x.example/?{query}"))
    genuine = "hub.mode=subscribe&hub.challenge=1&hub.verify_token=meatyhamhock"
    without = Verifier.meta("hush")
    with pytest.raises(SignatureError):
        without.handshake(Request({}, b"", method="GET", url=f"https://x.example/?{genuine}"))


def test_slacks_url_verification_has_its_reply() -> None:
    body = b'{"token":"x","challenge":"3eZbrw1aBm2rZgRNFdxV","type":"url_verification"}'
    sample = samples.slack(body)
    verifier = Verifier.slack("hush", types="message")
    assert verifier.verify(sample.headers, body, now=NOW).reply == b"3eZbrw1aBm2rZgRNFdxV"
    with pytest.raises(SignatureError):
        verifier.verify(sample.headers, body + b" ", now=NOW)


def test_twilio_signs_the_query_of_a_get() -> None:
    url = "https://mycompany.example/voice?AccountSid=AC1&CallSid=CA1"
    headers = {"X-Twilio-Signature": samples.base64_hmac(b"12345", url.encode(), "sha1")}
    message = Verifier.twilio("12345").verify(headers, b"", method="GET", url=url)
    assert message.data == {"AccountSid": "AC1", "CallSid": "CA1"}


def test_twilio_behind_a_proxy_has_its_url_configured() -> None:
    sample = samples.twilio()
    verifier = Verifier.twilio("12345", url="https://mycompany.example/sms")
    inside = "http://10.0.0.1:8000/internal/sms?foo=1&bar=2"
    assert verifier.verify(sample.headers, sample.body, url=inside)
    with pytest.raises(SignatureError):
        Verifier.twilio("12345").verify(sample.headers, sample.body, url=inside)


def test_the_query_of_a_configured_url_is_never_taken_unsigned() -> None:
    url = "https://mycompany.example/voice?CallSid=CA1"
    headers = {"X-Twilio-Signature": samples.base64_hmac(b"12345", url.encode(), "sha1")}
    verifier = Verifier.twilio("12345", url=url)
    inside = "http://10.0.0.1/voice?CallSid="
    message = verifier.verify(headers, b"", method="GET", url=f"{inside}CA1")
    assert message.data == {"CallSid": "CA1"}
    with pytest.raises(SignatureError):
        verifier.verify(headers, b"", method="GET", url=f"{inside}FORGED")
    for query in ("\ud83d", "\u00e9", "\x00"):
        with pytest.raises(VerificationError):
            verifier.verify(headers, b"", method="GET", url=inside + query)


def test_only_meta_shakes_hands() -> None:
    url = "https://x.example/?hub.mode=subscribe&hub.challenge=1&hub.verify_token=x"
    assert Verifier.github("hush").handshake(Request({}, b"", method="GET", url=url)) is None


def test_settings_that_can_not_work() -> None:
    for settings in ({"max_body": 0}, {"tolerance": timedelta(0)}, {"tenants": "x"}, {"typo": 1}):
        with pytest.raises(ConfigurationError):
            Verifier.standard(WHSEC, **settings)


def test_all_errors_have_one_root() -> None:
    assert issubclass(VerificationError, WireVerificationError)
    assert issubclass(VerificationError, SurehookError)
    assert issubclass(ConfigurationError, SurehookError)
    with pytest.raises(WireVerificationError) as caught:
        samples.standard().verify(headers={})
    assert "whsec" not in str(caught.value)
