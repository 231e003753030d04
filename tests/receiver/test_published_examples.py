"""What providers publish as genuine verifies here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from receiver.errors import SignatureError
from receiver.verify import Verifier
from tests.receiver import samples

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "data" / "signatures.json").read_text()
)
OFFICIAL = VECTORS["valid"][0]


def body_of(vector: dict[str, Any]) -> bytes:
    if "body_hex" in vector:
        return bytes.fromhex(vector["body_hex"])
    return vector["body"].encode()


def standard_headers(vector: dict[str, Any], signature: str | None = None) -> dict[str, str]:
    return {
        "webhook-id": vector["id"],
        "webhook-timestamp": str(vector["timestamp"]),
        "webhook-signature": vector["signature"] if signature is None else signature,
    }


@pytest.mark.parametrize("vector", VECTORS["valid"], ids=lambda vector: vector["name"])
def test_standard_vectors_verify(vector: dict[str, Any]) -> None:
    verifier = Verifier.standard(vector.get("public", vector["secret"]))
    now = vector["timestamp"]
    message = verifier.verify(standard_headers(vector), body_of(vector), now=now)
    assert message.id == vector["id"]
    assert message.body == body_of(vector)
    assert message.timestamp is not None
    assert message.timestamp.timestamp() == now


@pytest.mark.parametrize("signature", VECTORS["must_fail_against_official_1"])
def test_standard_vectors_that_must_fail(signature: str) -> None:
    verifier = Verifier.standard(OFFICIAL["secret"])
    headers = standard_headers(OFFICIAL, signature)
    with pytest.raises(SignatureError):
        verifier.verify(headers, body_of(OFFICIAL), now=OFFICIAL["timestamp"])


@pytest.mark.parametrize("decoy", VECTORS["decoys_must_not_hide_a_valid_signature"])
def test_c04_a_decoy_does_not_hide_a_valid_signature(decoy: str) -> None:
    verifier = Verifier.standard(OFFICIAL["secret"])
    for signature in (f"{decoy} {OFFICIAL['signature']}", f"{OFFICIAL['signature']} {decoy}"):
        headers = standard_headers(OFFICIAL, signature)
        assert verifier.verify(headers, body_of(OFFICIAL), now=OFFICIAL["timestamp"])


def test_githubs_published_example() -> None:
    vector = VECTORS["providers"][0]
    headers = {"X-Hub-Signature-256": vector["signature"], "X-GitHub-Delivery": "d-1"}
    message = Verifier.github(vector["secret"]).verify(headers, vector["body"])
    assert message.id == "d-1"


def test_slacks_published_example() -> None:
    # https://docs.slack.dev/authentication/verifying-requests-from-slack
    body = (
        "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow"
        "&channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner"
        "&command=%2Fwebhook-collect&text="
        "&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554"
        "%2F96rGlfmibIGlgcZRskXaIFfN"
        "&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    headers = {
        "Content-Type": "application/x-www-form-urlencoded",
        "X-Slack-Request-Timestamp": "1531420618",
        "X-Slack-Signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
    }
    verifier = Verifier.slack("8f742231b10e8888abcd99yyyzzz85a5", tenants="T1DC2JH3J")
    message = verifier.verify(headers, body, now=1531420618)
    assert message.id == "398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    assert message.type == "/webhook-collect"
    assert message.data["text"] == ""


# https://www.twilio.com/docs/usage/security, and the tests of Twilio's libraries.
TWILIO_URL = "https://mycompany.com/myapp.php?foo=1&bar=2"
TWILIO_FIELDS = {
    "CallSid": "CA1234567890ABCDE",
    "Caller": "+14158675309",
    "Digits": "1234",
    "From": "+14158675309",
    "To": "+18005551212",
}


@pytest.mark.parametrize(
    ("url", "signature"),
    [
        (TWILIO_URL, "RSOYDt4T1cUTdK1PDd93/VVr8B8="),
        (TWILIO_URL.replace(".com", ".com:1234"), "RSOYDt4T1cUTdK1PDd93/VVr8B8="),
        (TWILIO_URL, "kvajT1Ptam85bY51eRf/AJRuM3w="),
        (TWILIO_URL.replace("https", "http"), "0ZXoZLH/DfblKGATFgpif+LLRf4="),
        (TWILIO_URL.replace("//", "//user:pass@"), "CukzLTc1tT5dXEDIHm/tKBanW10="),
        (TWILIO_URL.replace("//", "//user@"), "2YRLlVAflCqxaNicjMpJcSTgzSs="),
        (TWILIO_URL.replace("//", "//user:pass@"), "ZQFR1PTIZXF2MXB8ZnKCvnnA+rI="),
    ],
)
def test_twilios_published_examples(url: str, signature: str) -> None:
    headers = {
        "Content-Type": "application/x-www-form-urlencoded; charset=UTF-8",
        "X-Twilio-Signature": signature,
    }
    message = Verifier.twilio("12345").verify(headers, urlencode(TWILIO_FIELDS), url=url)
    assert message.data == TWILIO_FIELDS


def test_twilios_example_with_repeated_fields() -> None:
    fields = [("Sid", "CA123"), ("SidAccount", "AC123")]
    fields += [("Digits", digits) for digits in ("5678", "1234", "1234")]
    headers = {
        "Content-Type": "application/x-www-form-urlencoded",
        "X-Twilio-Signature": "IK+Dwps556ElfBT0I3Rgjkr1wJU=",
    }
    message = Verifier.twilio("12345").verify(headers, urlencode(fields), url=TWILIO_URL)
    assert message.data["Digits"] == ["5678", "1234", "1234"]


def test_twilios_example_of_a_json_body() -> None:
    digest = "0a1ff7634d9ab3b95db5c9a2dfe9416e41502b283a80c7cf19632632f96e6620"
    headers = {
        "Content-Type": "application/json",
        "X-Twilio-Signature": "a9nBmqA0ju/hNViExpshrM61xv4=",
    }
    body = '{"property": "value", "boolean": true}'
    url = f"{TWILIO_URL}&bodySHA256={digest}"
    verifier = Verifier.twilio("12345")
    assert verifier.verify(headers, body, url=url).data == {"property": "value", "boolean": True}
    with pytest.raises(SignatureError):
        verifier.verify(headers, body + " ", url=url)
    with pytest.raises(SignatureError):
        verifier.verify(headers, body, url=TWILIO_URL)


def test_adyens_published_example() -> None:
    # https://docs.adyen.com/development-resources/webhooks/secure-webhooks/verify-hmac-signatures
    message = samples.adyen().verify()
    assert message.id == "7914073381342284:AUTHORISATION:true"
    assert message.type == "AUTHORISATION"


def test_stripe_as_its_library_signs() -> None:
    assert samples.stripe().verify().id == "evt_1"


def test_metas_published_handshake() -> None:
    # https://developers.facebook.com/docs/graph-api/webhooks/getting-started
    from receiver.request import Request

    url = (
        "https://www.example.com/webhooks?hub.mode=subscribe&hub.challenge=1158201444"
        "&hub.verify_token=meatyhamhock"
    )
    verifier = samples.meta().verifier
    assert verifier.handshake(Request({}, b"", method="GET", url=url)) == b"1158201444"
