"""Whatever arrives, verification returns or raises its one error."""

from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wire import Reason, VerificationError, generate_secret, parse_secret, public_key, sign, verify
from wire.body_signature import verify_hmac_sha256_hex

SHARED = parse_secret(generate_secret())
PAIR = parse_secret(generate_secret("whsk"))
SECRETS = st.sampled_from(
    [SHARED, PAIR, public_key(PAIR), SHARED.reveal(), [SHARED, PAIR], [PAIR, generate_secret()]]
)
AT = 1_700_000_000
NAMES = st.sampled_from(
    [
        "webhook-id",
        "Webhook-Timestamp",
        "WEBHOOK-SIGNATURE",
        b"webhook-id",
        b"webhook-timestamp",
        b"webhook-signature",
        "x",
        b"\xff",
    ]
)
SCALARS = st.one_of(
    st.text(),
    st.binary(),
    st.none(),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.lists(st.text(), max_size=2),
    st.just(object()),
)
TIMESTAMPS = st.one_of(
    st.just(str(AT)),
    st.integers(AT - 400, AT + 400).map(str),
    st.text("0123456789_+-. ", max_size=14),
)
TOKENS = st.one_of(
    st.just(SHARED.sign(b"x")),
    st.just(PAIR.sign(b"x")),
    st.text(max_size=8),
    st.text(max_size=90).map("v1,".__add__),
    st.text("ABCab+/=", max_size=90).map("v1a,".__add__),
    st.binary(max_size=8).map(lambda raw: raw.decode("latin-1")),
)
SIGNATURES = st.lists(TOKENS, max_size=40).map(" ".join)
PLAUSIBLE = st.fixed_dictionaries(
    {
        "webhook-id": st.just("dlv_1") | st.text(),
        "webhook-timestamp": TIMESTAMPS,
        "webhook-signature": SIGNATURES,
    }
)
HEADERS = st.one_of(
    SCALARS,
    PLAUSIBLE,
    st.dictionaries(NAMES | SCALARS.filter(lambda value: not isinstance(value, list)), SCALARS),
    st.lists(st.tuples(NAMES, SCALARS | TIMESTAMPS | SIGNATURES), max_size=6),
    st.lists(SCALARS | st.tuples(SCALARS) | st.tuples(NAMES, SCALARS, SCALARS), max_size=4),
)
BODIES = st.one_of(st.binary(), st.text(), SCALARS, st.dictionaries(st.text(), st.text()))


@settings(max_examples=250)
@given(SECRETS, HEADERS, BODIES)
def test_any_headers_and_any_body_raise_nothing_but_the_verification_error(secrets, given_, body):
    # None of these is signed, so none may verify either.
    with pytest.raises(VerificationError) as caught:
        verify(secrets, given_, body, now=AT)
    assert caught.value.reason in list(Reason)


@settings(max_examples=100)
@given(st.lists(TOKENS.filter(lambda token: " " not in token), max_size=30), st.binary(), st.data())
def test_a_valid_signature_among_any_others_verifies(others, body, data):
    secret = data.draw(st.sampled_from([SHARED, PAIR]))
    position = data.draw(st.integers(0, len(others)))
    others.insert(position, sign(secret, "dlv_1", AT, body))
    given_ = {
        "webhook-id": "dlv_1",
        "webhook-timestamp": str(AT),
        "webhook-signature": " ".join(others),
    }
    assert verify([SHARED, PAIR], given_, body, now=AT).id == "dlv_1"
    altered = body + b"\x00"
    with pytest.raises(VerificationError):
        verify([SHARED, PAIR], given_, altered, now=AT)


@settings(max_examples=100)
@given(SCALARS | st.from_regex(r"sha256=[0-9a-f]{60,66}"), BODIES)
def test_any_sha256_hex_signature_raises_nothing_but_the_verification_error(signature, body):
    with pytest.raises(VerificationError):
        verify_hmac_sha256_hex(["one", b"two"], signature, body)


class Explosive:
    def __getattribute__(self, name):
        raise RuntimeError(name)


class ExplosiveText(str):
    __slots__ = ()

    def lower(self):
        raise RuntimeError

    def split(self, *args):
        raise RuntimeError

    __eq__ = isascii = __str__ = encode = partition = lower

    def __hash__(self):
        return 1


def released():
    view = memoryview(b"x")
    view.release()
    return view


WEIRD = {
    "explosive": Explosive,
    "claims to be str": lambda: Mock(spec=str),
    "claims to be bytes": lambda: Mock(spec=bytes),
    "claims to be dict": lambda: Mock(spec=dict),
    "mock": Mock,
    "explosive text": lambda: ExplosiveText("x"),
    "released view": released,
    "lone surrogate": lambda: "\ud800",
    "strided view": lambda: memoryview(b"abcd")[::2],
    "class": lambda: type,
    "ellipsis": lambda: ...,
    "iterator": lambda: iter([]),
}


@pytest.mark.parametrize("make", WEIRD.values(), ids=WEIRD.keys())
def test_objects_that_misbehave_are_the_one_error(make):
    good = {"webhook-id": "dlv_1", "webhook-timestamp": str(AT), "webhook-signature": "v1,x"}
    tries = [(make(), b""), (good, make()), ([(make(), "x")], b""), (make(), make())]
    tries += [({**good, name: make()}, b"") for name in good]
    for given_, body in tries:
        with pytest.raises(VerificationError):
            verify(SHARED, given_, body, now=AT)
