"""Header profiles, the headers of an attempt, and an endpoint's own headers."""

import contextlib
import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire import HeaderProfile, generate_secret, parse_secret, public_key, verify
from wire.body_signature import verify_hmac_sha256_hex
from wire.custom_headers import check_custom_headers
from wire.errors import HeaderError, ProfileError, SecretError
from wire.headers import check_content_type, redact_headers
from wire.profiles import GITHUB, IDEMPOTENCY_KEY, PROFILES, STANDARD, build_headers, check_profiles

SECRET = parse_secret(generate_secret())
PAIR = parse_secret(generate_secret("whsk"))
AT = 1_700_000_000
BODY = '{"tier":"🚀"}'.encode()
GIVEN = {
    "secrets": [SECRET],
    "delivery_id": "dlv_1",
    "event_id": "evt_1",
    "event_type": "invoice.paid",
    "attempt": 2,
    "timestamp": AT,
    "body": BODY,
    "user_agent": "surehook/0.1",
}
SIGNATURES = {"webhook-signature", "X-Signature-256", "X-Hub-Signature-256"}


def built(profiles, **changes):
    return build_headers(profiles, **{**GIVEN, **changes})


def unsigned(headers):
    return {name: value for name, value in headers.items() if name not in SIGNATURES}


COMMON = {
    "content-type": "application/json",
    "user-agent": "surehook/0.1",
    "accept-encoding": "identity",
}


def test_c20_the_standard_profile_sends_these_headers():
    headers = built([STANDARD])
    assert unsigned(headers) == {
        **COMMON,
        "webhook-id": "dlv_1",
        "webhook-timestamp": str(AT),
        "X-Webhook-Event-Id": "evt_1",
        "X-Webhook-Event-Type": "invoice.paid",
        "X-Webhook-Delivery-Id": "dlv_1",
        "X-Webhook-Attempt": "2",
    }
    assert verify(SECRET, headers, BODY, now=AT).id == "dlv_1"


def test_the_prefix_is_a_setting():
    headers = built([STANDARD], prefix="X-Acme-")
    assert headers["X-Acme-Attempt"] == "2"
    assert not [name for name in headers if name.startswith("X-Webhook-")]


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        (
            IDEMPOTENCY_KEY,
            {
                "X-Idempotency-Key": "dlv_1",
                "X-Event-ID": "evt_1",
                "X-Event-Type": "invoice.paid",
                "X-Delivery-Attempt": "2",
            },
        ),
        (
            GITHUB,
            {
                "X-GitHub-Delivery": "dlv_1",
                "X-GitHub-Event": "invoice.paid",
                "X-Webhook-Attempt": "2",
            },
        ),
    ],
)
def test_the_other_profiles_sign_the_body_with_the_secret_as_shown(profile, expected):
    headers = built([profile])
    assert unsigned(headers) == {**COMMON, **expected}
    verify_hmac_sha256_hex(SECRET.reveal(), headers[profile.signature], BODY)


def test_c04_rotation_signs_once_for_each_secret():
    new = parse_secret(generate_secret())
    headers = built([STANDARD, IDEMPOTENCY_KEY], secrets=[new, PAIR, SECRET])
    assert len(headers["webhook-signature"].split(" ")) == 3
    for secret in (new, SECRET, public_key(PAIR)):
        assert verify(secret, headers, BODY, now=AT)
    # One signature fits here: the newest shared secret's.
    verify_hmac_sha256_hex(new.reveal(), headers["X-Signature-256"], BODY)


def test_several_profiles_are_merged():
    profiles = tuple(PROFILES.values())
    headers = built(profiles)
    for profile in profiles:
        assert built([profile]).items() <= headers.items()
    assert len({name.lower() for name in headers}) == len(headers)


def test_a14_c17_each_attempt_has_its_own_timestamp_and_signature_and_the_same_id():
    first, second = built([STANDARD]), built([STANDARD], attempt=3, timestamp=AT + 360)
    assert first["webhook-id"] == second["webhook-id"]
    assert first["webhook-signature"] != second["webhook-signature"]
    assert verify(SECRET, second, BODY, now=AT + 360)


def test_attempts_that_can_not_be_signed_are_errors():
    with pytest.raises(ProfileError, match="at least one secret"):
        built([STANDARD], secrets=[])
    with pytest.raises(ProfileError, match="whsec_"):
        built([IDEMPOTENCY_KEY], secrets=[PAIR])
    with pytest.raises(SecretError, match="only verifies"):
        built([STANDARD], secrets=[parse_secret(public_key(PAIR))])


OWN = {
    "name": "acme",
    "scheme": "standard",
    "signature": "Acme-Signature",
    "id": "Acme-Id",
    "timestamp": "Acme-Time",
    "attempt": "{prefix}Attempt",
}


def test_a_platform_defines_its_own_profile_as_data():
    own = HeaderProfile.from_dict(OWN)
    assert own.to_dict() == OWN
    assert HeaderProfile.from_dict(own.to_dict()) == own
    headers = built([own, STANDARD], prefix="X-Acme-")
    assert headers["Acme-Signature"] == headers["webhook-signature"]
    assert headers["X-Acme-Attempt"] == "2"
    for profile in PROFILES.values():
        assert HeaderProfile.from_dict(profile.to_dict()) == profile
        with pytest.raises(dataclasses.FrozenInstanceError):
            profile.name = "x"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"name": ""}, "name"),
        ({"name": "a b"}, "name"),
        ({"name": "é"}, "name"),
        ({"name": None}, "name"),
        ({"name": 5}, "name"),
        ({"scheme": "sha1"}, "scheme"),
        ({"scheme": None}, "scheme"),
        ({"signature": None}, "signature"),
        ({"id": None}, "id"),
        ({"timestamp": None}, "timestamp"),
        ({"id": "X A"}, "id"),
        ({"id": "X\r\nY"}, "id"),
        ({"id": "é"}, "id"),
        ({"id": ""}, "id"),
        ({"id": "{other}Id"}, "id"),
        ({"id": "x" * 200}, "id"),
        ({"attempt": "X:"}, "attempt"),
        ({"id": "Host"}, "reserved"),
        ({"attempt": "content-LENGTH"}, "reserved"),
        ({"event_id": "User-Agent"}, "reserved"),
        ({"event_id": "Authorization"}, "reserved"),
        ({"attempt": "ACME-ID"}, "already carries"),
        ({"signature": "acme-id"}, "already carries"),
        ({"unknown": "x"}, "unknown"),
        ({"id": 5}, "id"),
        ({"id": ["x"]}, "id"),
    ],
)
def test_contradictory_profiles_are_refused(changes, named):
    with pytest.raises(ProfileError, match=named):
        HeaderProfile.from_dict({**OWN, **changes})


@given(
    st.none()
    | st.text()
    | st.dictionaries(st.sampled_from([*OWN, "x", 5]), st.text() | st.integers())
)
def test_any_definition_is_a_profile_or_the_profile_error(value):
    with contextlib.suppress(ProfileError):
        HeaderProfile.from_dict(value)


def test_profiles_that_clash_are_refused_before_anything_is_sent():
    clash = HeaderProfile.from_dict({**OWN, "event_id": "webhook-ID"})
    with pytest.raises(ProfileError, match="already carries"):
        check_profiles([STANDARD, clash])
    hexed = dataclasses.replace(GITHUB, name="hexed", signature="Webhook-Signature")
    with pytest.raises(ProfileError, match="already carries"):
        check_profiles([STANDARD, hexed])
    for profiles in ([], [STANDARD, STANDARD], [STANDARD] * 9):
        with pytest.raises(ProfileError, match="profile"):
            check_profiles(profiles)
    for prefix in ("X A-", "X-\r\n", "é-", "x" * 200):
        with pytest.raises(ProfileError, match="header name"):
            check_profiles([STANDARD], prefix=prefix)
    check_profiles([STANDARD], prefix="X-Acme-")
    # One header may serve the same value to two profiles, in whatever case.
    same = dataclasses.replace(GITHUB, name="same", id="WEBHOOK-ID")
    headers = built([STANDARD, same])
    assert headers["webhook-id"] == "dlv_1"
    assert "WEBHOOK-ID" not in headers


def test_signatures_and_credentials_are_redacted():
    sent = {
        **built(tuple(PROFILES.values()), secrets=[SECRET, PAIR]),
        "Authorization": "Bearer hush",
        "Proxy-Authorization": "hush",
        "COOKIE": "hush",
        "X-Api-Key": "hush",
        "X-Auth-Token": "hush",
        "X-Tenant": "acme",
        "X-Own": "hush",
        "Odd-Signature": "hush",
        "X-Mac": "v1,hush",
        "X-Mac-2": "v1,*** v1,hush",
    }
    shown = redact_headers(sent, hide=["x-own"])
    assert list(shown) == list(sent)
    assert "hush" not in str(shown)
    for signature in [sent[name] for name in SIGNATURES]:
        for part in signature.split(" "):
            assert part.split(",")[-1] not in str(shown)
    assert shown["webhook-signature"] == "v1,*** v1a,***"
    assert shown["X-Signature-256"] == "sha256=***"
    assert shown["Authorization"] == shown["X-Own"] == shown["Odd-Signature"] == "***"
    kept = ("webhook-id", "X-Idempotency-Key", "X-Tenant", "content-type", "X-Webhook-Event-Type")
    assert all(shown[name] == sent[name] for name in kept)


def test_custom_headers_are_taken_as_they_are():
    given_ = {
        "Authorization": "Bearer a.b-c=",
        "X-Tenant": 'a "b" \t c',
        "X-Empty": "",
        "!#$%&'*+.^_`|~": "x",
    }
    assert check_custom_headers(given_) == given_
    assert check_custom_headers({}) == {}


RESERVED = [
    "Host",
    "content-length",
    "Content-Type",
    "Transfer-Encoding",
    "CONNECTION",
    "User-Agent",
    "Accept-Encoding",
    "TE",
    "Trailer",
    "Upgrade",
    "Keep-Alive",
    "Expect",
    "Content-Encoding",
    "Proxy-Authorization",
    "webhook-id",
    "Webhook-Signature",
    "webhook-anything",
    "X-Webhook-Attempt",
    "X-Webhook-Own",
    "X-Signature-256",
    "x-hub-signature-256",
    "X-GitHub-Event",
    "X-Idempotency-Key",
]


@pytest.mark.parametrize(
    "headers",
    [
        *({name: "x"} for name in RESERVED),
        {"X-B": "a\r\nX-C: 1"},
        {"X-B": "a\nb"},
        {"X-B": "a\rb"},
        {"X-B": "a\x00b"},
        {"X-B": "é"},
        {"X-B": "😱"},
        {"X-B": "a\x7f"},
        {"X-B": " a"},
        {"X-B": "a\t"},
        {"X-B": "a\n"},
        {"X-B": " "},
        {"X A": "1"},
        {"": "1"},
        {"X:": "1"},
        {"é": "1"},
        {"X\r\nY": "1"},
        {"X-B\n": "1"},
        {"X-B": 5},
        {"X-B": None},
        {"X-B": b"x"},
        {5: "x"},
        {None: "x"},
        {"X-B": ["x"]},
        {"x" * 129: "1"},
        {"X-B": "x" * 4097},
        {"X-B": "1", "x-b": "2"},
        {f"X-{n}": "1" for n in range(21)},
        {f"X-{n}": "x" * 4000 for n in range(3)},
        None,
        [],
        "X-B: 1",
        [("X-B", "1")],
        5,
    ],
)
def test_c19_custom_headers_that_may_not_be_sent_are_refused(headers):
    with pytest.raises(HeaderError) as caught:
        check_custom_headers(headers)
    assert str(caught.value).isprintable()


def test_c19_names_of_a_platforms_own_profile_and_prefix_are_reserved():
    own = HeaderProfile.from_dict(OWN)
    assert check_custom_headers({"Acme-Id": "1", "X-Acme-Own": "1"})
    for name in ("acme-id", "X-Acme-Own"):
        with pytest.raises(HeaderError, match="reserved"):
            check_custom_headers({name: "1"}, profiles=[own], prefix="X-Acme-")


@given(st.dictionaries(st.text(), st.text()) | st.dictionaries(st.integers(), st.binary()))
def test_c19_any_custom_headers_are_safe_or_the_header_error(headers):
    try:
        checked = check_custom_headers(headers)
    except HeaderError:
        return
    head = "".join(f"{name}: {value}\r\n" for name, value in checked.items())
    assert head.isascii()
    assert len(head.splitlines()) == len(checked)


def test_c20_content_types():
    for text in ("application/json", "text/xml;charset=utf-8", "application/cloudevents+json; v=1"):
        assert check_content_type(text) == text
    for bad in (
        'application/json; charset="utf-8"',
        "",
        "json",
        "a/b\r\nX: 1",
        "a/é",
        None,
        "a/b;",
        "a/b " * 99,
    ):
        with pytest.raises(HeaderError):
            check_content_type(bad)
