"""Any change of what is signed fails, with the one family of errors: 10,000 cases in all."""

from __future__ import annotations

import json
import random
from urllib.parse import parse_qs

import pytest

from receiver.errors import VerificationError
from receiver.message import Message
from tests.receiver.samples import ADYEN_ITEM, NOW, SAMPLES, Sample, adyen, mercado_libre

CASES = 1_250
"""For each of the eight signed providers: 10,000 together."""


def mutated(rng: random.Random, text: bytes) -> bytes:
    """`text` with one byte replaced, removed, inserted or moved."""
    at = rng.randrange(len(text))
    # No space: HTTP itself does not keep those around a header's value.
    new = bytes([rng.choice([*range(33, 127), *range(128, 256)])])
    match rng.randrange(4):
        case 0:
            changed = text[:at] + new + text[at + 1 :]
        case 1:
            changed = text[:at] + text[at + 1 :]
        case 2:
            changed = text[:at] + new + text[at:]
        case _:
            changed = text[:at] + text[at + 1 :] + text[at : at + 1]
    return changed if changed != text else mutated(rng, text)


def mutated_request(rng: random.Random, sample: Sample) -> tuple[dict[str, str], bytes, str]:
    headers, body, url = dict(sample.headers), sample.body, sample.url
    kinds = ["header"] * len(sample.signed) + ["body", "drop"] + (["url"] if url else [])
    kind = rng.choice(kinds)
    if kind == "body":
        body = mutated(rng, body)
    elif kind == "url":
        url = mutated(rng, url.encode()).decode("latin-1")
    else:
        name = rng.choice(sample.signed)
        if kind == "drop":
            del headers[name]
        else:
            headers[name] = mutated(rng, headers[name].encode()).decode("latin-1")
    return headers, body, url


def is_same(sample: Sample, body: bytes, url: str) -> bool:
    """Whether Twilio signs the same text for a changed form.

    It joins names and values without anything between, so that an ``=`` can move unseen, and it
    signs ``%2b`` like ``%2B``.
    """
    given, genuine = (
        "".join(sorted(name + "".join(values) for name, values in fields.items()))
        for fields in (parse_qs(b.decode("latin-1"), True) for b in (body, sample.body))
    )
    return sample.verifier.source == "twilio" and given == genuine and url == sample.url


@pytest.mark.parametrize("name", [n for n in SAMPLES if n not in ("adyen", "mercado_libre")])
def test_any_mutation_of_a_signed_request_fails(name: str) -> None:
    sample = SAMPLES[name]()
    assert isinstance(sample.verify(), Message)
    rng = random.Random(name)
    tried = 0
    while tried < CASES:
        headers, body, url = mutated_request(rng, sample)
        if headers == sample.headers and is_same(sample, body, url):
            continue
        tried += 1
        with pytest.raises(VerificationError) as caught:
            sample.verify(headers=headers, body=body, url=url)
        assert caught.value.status in (400, 401)
        assert caught.value.reason


SIGNED_BY_ADYEN = [
    "pspReference",
    "merchantAccountCode",
    "merchantReference",
    "eventCode",
    "success",
    "hmacSignature",
    "currency",
]


def test_any_mutation_of_what_adyen_signs_fails() -> None:
    rng = random.Random("adyen")
    for _ in range(CASES):
        item = json.loads(json.dumps(ADYEN_ITEM))
        field = rng.choice(SIGNED_BY_ADYEN)
        holder = {"hmacSignature": item["additionalData"], "currency": item["amount"]}
        place = holder.get(field, item)
        place[field] = mutated(rng, place[field].encode()).decode("latin-1")
        with pytest.raises(VerificationError) as caught:
            adyen(item).verify()
        assert caught.value.status in (400, 401)


def test_any_mutation_of_the_path_application_or_topic_fails() -> None:
    rng = random.Random("mercado_libre")
    sample = mercado_libre()
    secret = sample.url.split("/")[4]
    for _ in range(CASES):
        match rng.randrange(3):
            case 0:
                wrong = mutated(rng, secret.encode()).decode("latin-1")
                url = sample.url.replace(secret, wrong)
                # A slash inside makes two segments, of which neither may be the whole secret.
                changed = {"url": url}
            case 1:
                wrong_id = int.from_bytes(rng.randbytes(7), "big")
                changed = {"body": mercado_libre(application_id=wrong_id).body}
            case _:
                topic = mutated(rng, b"orders_v2").decode("latin-1")
                changed = {"body": mercado_libre(topic=topic).body}
        if changed.get("url") and secret in changed["url"].split("/"):
            continue
        with pytest.raises(VerificationError) as caught:
            sample.verify(**changed)
        assert caught.value.status in (400, 401)


@pytest.mark.parametrize("name", ["standard", "stripe", "slack"])
def test_any_timestamp_out_of_tolerance_fails(name: str) -> None:
    sample = SAMPLES[name]()
    rng = random.Random(name)
    for _ in range(200):
        away = rng.choice([-1, 1]) * (300.001 + rng.random() * 10**6)
        with pytest.raises(VerificationError) as caught:
            sample.verify(now=NOW + away)
        assert caught.value.status == 401
    assert sample.verify(now=NOW + 300)
    assert sample.verify(now=NOW - 300)


@pytest.mark.parametrize("name", SAMPLES)
def test_any_bytes_give_a_message_or_the_one_error(name: str) -> None:
    sample = SAMPLES[name]()
    rng = random.Random(name)
    bodies = [b"", b"[" * 100_000, b"1" * 5000, b"null", b"[]", b'"x"', b'{"id":NaN}', b"\xff\xfe"]
    bodies += [b'{"notificationItems":[{"NotificationRequestItem":null}]}', b'{"entry":[[]]}']
    bodies += [b'{"notificationItems":7}', b'{"notificationItems":[{"NotificationRequestItem":7}]}']
    bodies += [rng.randbytes(rng.randrange(200)) for _ in range(200)]
    for body in bodies:
        headers = dict(sample.headers)
        for header in headers:
            if rng.random() < 0.5:
                headers[header] = rng.randbytes(rng.randrange(60)).decode("latin-1")
        url = sample.url + rng.choice(["", "\x00", "?%zz", "?a=%ff", ":99999999", "[", "\ud83d"])
        outcome: object
        try:
            outcome = sample.verify(headers=headers, body=body, url=url)
        except VerificationError as error:
            outcome = error.status
        assert isinstance(outcome, Message) or outcome in (400, 401, 413)
