"""One genuine request of every provider, signed here with the standard library alone."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from receiver.message import Message
from receiver.verify import Verifier

NOW = 1_700_000_000
WHSEC = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ADYEN_KEY = "44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA056"
PATH_SECRET = "tr0ub4dor-and-3-more"


def hex_hmac(key: str, content: bytes) -> str:
    return hmac.new(key.encode(), content, hashlib.sha256).hexdigest()


def base64_hmac(key: bytes, content: bytes, algorithm: str = "sha256") -> str:
    return base64.b64encode(hmac.new(key, content, algorithm).digest()).decode()


@dataclass
class Sample:
    """A request; `signed` names the headers whose every byte counts."""

    verifier: Verifier
    headers: dict[str, str]
    body: bytes
    signed: tuple[str, ...]
    url: str = ""
    now: float = NOW
    signed_body: bool = True
    extra: dict[str, Any] = field(default_factory=dict)

    def verify(self, **changes: Any) -> Message:
        given = {"headers": self.headers, "body": self.body, "url": self.url, "now": self.now}
        given |= changes
        headers, body = given.pop("headers"), given.pop("body")
        return self.verifier.verify(headers, body, **given)


def standard(body: bytes = b'{"id":"evt_1","type":"invoice.paid","data":{"n":1.0}}') -> Sample:
    key = base64.b64decode(WHSEC.removeprefix("whsec_"))
    signature = base64_hmac(key, b"msg_1.%d.%b" % (NOW, body))
    headers = {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(NOW),
        "webhook-signature": f"v1,{signature}",
    }
    return Sample(Verifier.standard(WHSEC), headers, body, tuple(headers))


def stripe(body: bytes = b'{"id":"evt_1","type":"charge.paid","account":"acct_1"}') -> Sample:
    # As stripe-python's WebhookSignature does it.
    signature = hex_hmac("whsec_test_secret", b"%d.%b" % (NOW, body))
    headers = {"Stripe-Signature": f"t={NOW},v1={signature}"}
    return Sample(Verifier.stripe("whsec_test_secret"), headers, body, tuple(headers))


def github(body: bytes = b'{"action":"opened","installation":{"id":7}}') -> Sample:
    headers = {
        "X-Hub-Signature-256": f"sha256={hex_hmac('hush', body)}",
        "X-GitHub-Delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
        "X-GitHub-Event": "issues",
        "X-GitHub-Hook-Installation-Target-ID": "79929171",
    }
    return Sample(Verifier.github("hush"), headers, body, ("X-Hub-Signature-256",))


def shopify(body: bytes = b'{"id":820982911946154508}') -> Sample:
    headers = {
        "X-Shopify-Hmac-SHA256": base64_hmac(b"hush", body),
        "X-Shopify-Topic": "orders/create",
        "X-Shopify-Shop-Domain": "shop.example",
        "X-Shopify-Webhook-Id": "b54557e4-bdd9-4b37-8a5f-bf7d70bcd043",
    }
    return Sample(Verifier.shopify("hush"), headers, body, ("X-Shopify-Hmac-SHA256",))


def slack(
    body: bytes = b'{"type":"event_callback","team_id":"T1","api_app_id":"A1","event_id":"Ev1",'
    b'"event":{"type":"message"}}',
) -> Sample:
    headers = {
        "X-Slack-Request-Timestamp": str(NOW),
        "X-Slack-Signature": f"v0={hex_hmac('hush', b'v0:%d:%b' % (NOW, body))}",
    }
    return Sample(Verifier.slack("hush"), headers, body, tuple(headers))


WHATSAPP = {
    "object": "whatsapp_business_account",
    "entry": [
        {
            "id": "WABA",
            "changes": [
                {
                    "field": "messages",
                    "value": {
                        "messaging_product": "whatsapp",
                        "messages": [
                            {"id": "wamid.A", "type": "text", "text": {"body": "hi"}},
                            {"id": "wamid.B", "type": "text", "text": {"body": "yo"}},
                        ],
                    },
                }
            ],
        }
    ],
}


def meta(body: bytes | None = None) -> Sample:
    body = json.dumps(WHATSAPP).encode() if body is None else body
    headers = {"X-Hub-Signature-256": f"sha256={hex_hmac('hush', body)}"}
    verifier = Verifier.meta("hush", verify_token="meatyhamhock", source="whatsapp")
    return Sample(verifier, headers, body, tuple(headers))


def twilio() -> Sample:
    fields = {"AccountSid": "AC1", "MessageSid": "SM1", "Body": "hello there", "To": "+1800"}
    url = "https://mycompany.example/sms?foo=1&bar=2"
    text = url + "".join(name + fields[name] for name in sorted(fields))
    headers = {
        "Content-Type": "application/x-www-form-urlencoded",
        "X-Twilio-Signature": base64_hmac(b"12345", text.encode(), "sha1"),
        "I-Twilio-Idempotency-Token": "token-1",
    }
    body = urlencode(fields).encode()
    return Sample(Verifier.twilio("12345"), headers, body, ("X-Twilio-Signature",), url=url)


ADYEN_ITEM = {
    "additionalData": {"hmacSignature": "coqCmt/IZ4E3CzPvMY8zTjQVL5hYJUiBRg8UU+iCWo0="},
    "amount": {"value": 1130, "currency": "EUR"},
    "pspReference": "7914073381342284",
    "eventCode": "AUTHORISATION",
    "eventDate": "2019-05-06T17:15:34.121+02:00",
    "merchantAccountCode": "TestMerchant",
    "merchantReference": "TestPayment-1407325143704",
    "paymentMethod": "visa",
    "success": "true",
}


def adyen(*items: dict[str, Any]) -> Sample:
    listed = [{"NotificationRequestItem": item} for item in items or (ADYEN_ITEM,)]
    body = json.dumps({"live": "false", "notificationItems": listed}).encode()
    return Sample(Verifier.adyen(ADYEN_KEY), {}, body, (), signed_body=False)


def adyen_signed(**changes: Any) -> dict[str, Any]:
    item = ADYEN_ITEM | changes
    amount = item["amount"]
    values = [
        item["pspReference"],
        item.get("originalReference", ""),
        item["merchantAccountCode"],
        item["merchantReference"],
        amount["value"],
        amount["currency"],
        item["eventCode"],
        item["success"],
    ]
    content = ":".join(map(str, values)).encode()
    return item | {
        "additionalData": {"hmacSignature": base64_hmac(bytes.fromhex(ADYEN_KEY), content)}
    }


def mercado_libre(attempts: int = 1, **changes: Any) -> Sample:
    content = {
        "_id": "f9f08571-1f65-4c46-9e0a-c0f43faa1557",
        "resource": "/orders/2195160686",
        "user_id": 468424240,
        "topic": "orders_v2",
        "application_id": 5503910054141466,
        "attempts": attempts,
        "sent": f"2019-10-30T16:19:2{attempts}.127Z",
        "received": "2019-10-30T16:19:20.106Z",
    } | changes
    verifier = Verifier.mercado_libre(
        PATH_SECRET, applications=5503910054141466, types=["orders_v2", "items"]
    )
    url = f"https://shop.example/hooks/{PATH_SECRET}/meli"
    body = json.dumps(content).encode()
    return Sample(verifier, {}, body, (), url=url, signed_body=False)


SAMPLES: dict[str, Callable[[], Sample]] = {
    "standard": standard,
    "stripe": stripe,
    "github": github,
    "shopify": shopify,
    "slack": slack,
    "meta": meta,
    "twilio": twilio,
    "adyen": adyen,
    "mercado_libre": mercado_libre,
}
