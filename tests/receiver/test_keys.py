"""What identifies a message: headers, fields, and the messages inside one body."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from receiver.errors import RequestError
from receiver.keys import META_MESSAGES, KeyRule, scoped
from receiver.verify import Verifier
from tests.receiver import samples
from tests.receiver.samples import NOW, WHATSAPP, WHSEC, meta


def ids(content: Any, **headers: str) -> list[str]:
    sample = meta(json.dumps(content).encode())
    message = sample.verify(headers=sample.headers | headers)
    return [part.id for part in message.parts]


def whatsapp_status(name: str = "delivered") -> dict[str, Any]:
    value = {"statuses": [{"id": "wamid.A", "status": name, "timestamp": "1"}]}
    changes = [{"field": "messages", "value": value}]
    return {"object": "whatsapp_business_account", "entry": [{"id": "WABA", "changes": changes}]}


def messenger(*messaging: dict[str, Any]) -> dict[str, Any]:
    return {"object": "page", "entry": [{"id": "P", "messaging": list(messaging)}]}


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("standard", "standard:ep:msg_1"),
        ("stripe", "stripe:ep:evt_1"),
        ("github", "github:ep:72d3162e-cc78-11e3-81ab-4c9367dc0958"),
        ("shopify", "shopify:ep:b54557e4-bdd9-4b37-8a5f-bf7d70bcd043"),
        ("slack", "slack:ep:Ev1"),
        ("twilio", "twilio:ep:token-1"),
        ("adyen", "adyen:ep:7914073381342284:AUTHORISATION:true"),
        ("mercado_libre", "mercado_libre:ep:f9f08571-1f65-4c46-9e0a-c0f43faa1557"),
    ],
)
def test_each_provider_has_its_key_scoped_by_source_and_endpoint(name: str, key: str) -> None:
    sample = samples.SAMPLES[name]()
    sample.verifier.endpoint = "ep"
    assert sample.verify().keys == (key,)


def test_scopes_can_not_reach_into_each_other() -> None:
    assert scoped("a", "b:c") != scoped("a:b", "c")
    assert scoped("a", "") + ":x" != scoped("a", ":") + "x"


def test_whatsapp_messages_are_parts_with_their_own_data() -> None:
    message = meta().verify()
    assert [part.id for part in message.parts] == ["wamid.A", "wamid.B"]
    assert message.parts[1].data["text"] == {"body": "yo"}
    one = message.only(message.parts[0], "token")
    assert (one.id, one.data["id"], one.token) == ("wamid.A", "wamid.A", "token")
    assert one.json() == WHATSAPP


def test_a_message_sent_again_in_another_batch_is_the_same() -> None:
    alone = copy.deepcopy(WHATSAPP)
    messages: list[Any] = alone["entry"][0]["changes"][0]["value"]["messages"]  # type: ignore[index]
    del messages[0]
    again = meta(json.dumps(alone).encode()).verify().parts
    assert again == meta().verify().parts[1:]
    messages[0]["text"]["body"] = "changed"
    other = meta(json.dumps(alone).encode()).verify().parts[0]
    assert other.key == again[0].key
    assert other.fingerprint != again[0].fingerprint


def test_instagram_and_messenger_messages() -> None:
    content = messenger(
        {"sender": {"id": "1"}, "message": {"mid": "m_1", "text": "hi"}},
        {"sender": {"id": "2"}, "message": {"mid": "m_2", "text": "yo"}},
    )
    assert ids(content) == ["m_1", "m_2"]
    part = meta(json.dumps(content).encode()).verify().parts[1]
    assert part.data["sender"] == {"id": "2"}


def test_a_message_and_its_deletion_are_two() -> None:
    content = messenger(
        {"message": {"mid": "m_1", "text": "hi"}},
        {"message": {"mid": "m_1", "is_deleted": True}},
    )
    assert ids(content) == ["m_1", "m_1:message.is_deleted"]


def test_status_callbacks_fall_back_to_the_delivery_id() -> None:
    assert ids(whatsapp_status(), **{"X-Webhook-Delivery-Id": "dlv_1"}) == ["dlv_1"]
    assert ids(messenger({"read": {"watermark": 1}}), **{"webhook-id": "dlv_2"}) == ["dlv_2"]
    delivered, read = ids(whatsapp_status()), ids(whatsapp_status("read"))
    assert delivered == ids(whatsapp_status())
    assert delivered != read


def test_what_has_no_id_beside_messages_is_one_more_part() -> None:
    mixed: Any = copy.deepcopy(WHATSAPP)
    mixed["entry"] += whatsapp_status()["entry"]
    sample = meta(json.dumps(mixed).encode())
    parts = sample.verify(headers=sample.headers | {"x-delivery-id": "d"}).parts
    assert [part.id for part in parts] == ["wamid.A", "wamid.B", "d"]
    assert parts[2].data == whatsapp_status()["entry"][0]["changes"]
    # In one change as well.
    value = mixed["entry"][0]["changes"][0]["value"]
    del mixed["entry"][1]
    value["statuses"] = [{"id": "wamid.Z", "status": "read"}]
    assert ids(mixed, **{"x-delivery-id": "d"}) == ["wamid.A", "wamid.B", "d"]
    assert ids(messenger({"message": {"mid": "m"}}, {"read": {}}), **{"webhook-id": "d"}) == [
        "m",
        "d",
    ]


def test_relayed_meta_events_inside_an_envelope() -> None:
    body = json.dumps({"id": "evt_1", "type": "meta", "data": WHATSAPP}).encode()
    sample = samples.standard(body)
    rule = KeyRule(
        messages=META_MESSAGES.messages, others=META_MESSAGES.others, headers=("webhook-id",),
        under="data",
    )  # fmt: skip
    verifier = Verifier.standard(WHSEC, keys=rule)
    message = verifier.verify(sample.headers, body, now=NOW)
    assert [part.id for part in message.parts] == ["wamid.A", "wamid.B"]


def test_adyen_items_are_messages_of_their_own() -> None:
    capture = samples.adyen_signed(eventCode="CAPTURE")
    message = samples.adyen(samples.ADYEN_ITEM, capture).verify()
    assert [part.id for part in message.parts] == [
        "7914073381342284:AUTHORISATION:true",
        "7914073381342284:CAPTURE:true",
    ]
    # An item sent again may carry another date; what is signed says whether it is the same.
    again = samples.adyen(samples.ADYEN_ITEM | {"eventDate": "2020-01-01"}).verify()
    assert again.parts[0].fingerprint == message.parts[0].fingerprint
    dearer = samples.adyen_signed(amount={"value": 9, "currency": "EUR"})
    assert samples.adyen(dearer).verify().fingerprint != message.parts[0].fingerprint


def test_an_adyen_item_without_an_id_is_not_dropped() -> None:
    item = samples.adyen_signed(pspReference="")
    with pytest.raises(RequestError):
        samples.adyen(samples.ADYEN_ITEM, item).verify()


def test_mercado_libre_attempts_differ_and_are_the_same_message() -> None:
    first, second = samples.mercado_libre(1).verify(), samples.mercado_libre(2).verify()
    assert first.body != second.body
    assert first.parts == second.parts
    other = samples.mercado_libre(resource="/orders/1").verify()
    assert (other.key, other.fingerprint != first.fingerprint) == (first.key, True)


@pytest.mark.parametrize("name", ["github", "shopify"])
def test_a_missing_key_is_a_400(name: str) -> None:
    sample = samples.SAMPLES[name]()
    headers = {header: sample.headers[header] for header in sample.signed}
    with pytest.raises(RequestError) as caught:
        sample.verify(headers=headers)
    assert (caught.value.status, caught.value.reason) == (400, "key_missing")


@pytest.mark.parametrize(
    "body", [b"{}", b"[]", b"7", b'{"id":null}', b'{"id":""}', b'{"id":1.5}', b'{"id":{}}', b"x"]
)
def test_a_missing_key_in_the_body_is_a_400(body: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        samples.stripe(body).verify()
    assert caught.value.status == 400


def test_a_rule_of_ones_own() -> None:
    sample = samples.github()
    headers = sample.headers | {"X-Idempotency-Key": "k-1"}
    for rule, wanted in (
        (KeyRule(headers=("X-Idempotency-Key",)), "k-1"),
        (KeyRule(headers=("x-nothing",), paths=("installation.id", "action")), "7:opened"),
        (KeyRule(paths=("nothing|action",)), "opened"),
    ):
        assert Verifier.github("hush", keys=rule).verify(headers, sample.body).id == wanted
    by_body = Verifier.github("hush", keys=KeyRule(body_hash=True))
    replayed = headers | {"X-GitHub-Delivery": "another"}
    assert by_body.verify(headers, sample.body).key == by_body.verify(replayed, sample.body).key


def test_ids_may_be_whole_numbers_of_any_size() -> None:
    assert samples.stripe(b'{"id":8202522731445525542}').verify().id == "8202522731445525542"


def test_the_number_of_messages_is_bounded() -> None:
    content = messenger(*[{"message": {"mid": str(n)}} for n in range(1001)])
    with pytest.raises(RequestError, match="1000"):
        ids(content)
