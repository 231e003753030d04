"""Operations on events and deliveries, named as in the API's OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Unpack

from sender.client.binding import listing, operation
from sender.client.given import (
    BatchEvent,
    DeliveryFilter,
    EventFilter,
    Later,
    Paging,
)
from sender.client.reading import read_batch, read_event, read_published
from sender.client.request import (
    JSON,
    Request,
    choose_key,
    delete,
    encode_members,
    get,
    key_header,
    keyed,
    listed,
    segment,
    send,
)
from sender.client.results import Page
from sender.client.traffic import Attempt, Delivery, Event, EventWithBody
from sender.errors import ClientError
from sender.publish import Published
from wire.envelope import encode_json, format_timestamp
from wire.rawjson import RawJson


class EventOperations:
    """Publishing, and reading what was published."""

    @operation
    def publish(
        self,
        *,
        tenant: str,
        type: str,  # noqa: A002 - the word of the wire contract
        data: Any,
        idempotency_key: str | None = None,
        **later: Unpack[Later],
    ) -> Request[Published]:
        """Publish an event to every endpoint of the tenant that matches its type.

        ``data`` is anything JSON can hold, or `wire.RawJson`; it travels byte for byte as it is
        written here. The call returns after the service has committed. All its tries carry one
        idempotency key, a fresh one unless it is given, so they make one event.

        Raises `wire.errors.EnvelopeError` for data that is no JSON, before anything is sent.
        """
        key = choose_key(idempotency_key)
        headers = key_header(key)
        members: dict[str, Any] = {"tenant": tenant, "type": type, **later}
        body = _with_data(members if headers else {**members, "idempotency_key": key}, data)
        headers["content-type"] = JSON
        return Request(
            "POST", "/v1/events", read_published, body=body, headers=headers, repeatable=True
        )

    @operation
    def publish_batch(self, events: Sequence[BatchEvent]) -> Request[tuple[Published, ...]]:
        """Publish up to 1,000 events in their order, all or none of them.

        Each gets a fresh idempotency key unless it has one, so that a repeated try makes nothing
        twice.
        """
        encoded = []
        for event in events:
            members = {name: value for name, value in event.items() if name != "data"}
            members["idempotency_key"] = choose_key(event.get("idempotency_key"))
            encoded.append(_with_data(members, event["data"]))
        return Request(
            "POST",
            "/v1/events/batch",
            read_batch,
            body=b'{"events":[%b]}' % b",".join(encoded),
            headers={"content-type": JSON},
            repeatable=True,
        )

    @operation
    def publish_raw(
        self,
        *,
        tenant: str,
        type: str,  # noqa: A002
        body: bytes,
        content_type: str = "application/octet-stream",
        idempotency_key: str | None = None,
        deliver_at: datetime | None = None,
    ) -> Request[Published]:
        """Publish bytes as they are, without an envelope, under a content type of their own."""
        if not isinstance(body, bytes):
            raise ClientError(f"body must be bytes, not {body.__class__.__name__}")
        headers = keyed(idempotency_key)
        if not content_type.isascii() or not content_type.isprintable():
            raise ClientError("content_type must be printable ASCII")
        query = {"tenant": tenant, "type": type}
        if deliver_at is not None:
            query["deliver_at"] = format_timestamp(deliver_at)
        return Request(
            "POST",
            "/v1/events/raw",
            read_published,
            query,
            body,
            {**headers, "content-type": content_type},
            repeatable=True,
        )

    @listing
    def list_events(self, **where: Unpack[EventFilter]) -> Request[Page[Event]]:
        """List events without their bodies, newest first."""
        return listed("/v1/events", Event, where)

    @operation
    def read_event(self, event_id: str) -> Request[EventWithBody]:
        """Show an event with the exact bytes of its body."""
        path = f"/v1/events/{segment('event_id', event_id)}"
        return Request("GET", path, read_event, repeatable=True)

    @operation
    def delete_event_body(self, event_id: str) -> Request[None]:
        """Delete what an event said, for good, and keep that it was sent."""
        return delete(f"/v1/events/{segment('event_id', event_id)}/body")


class DeliveryOperations:
    """Deliveries and their attempts."""

    @listing
    def list_deliveries(self, **where: Unpack[DeliveryFilter]) -> Request[Page[Delivery]]:
        """List deliveries, newest first."""
        return listed("/v1/deliveries", Delivery, where)

    @operation
    def read_delivery(self, delivery_id: str) -> Request[Delivery]:
        """Show a delivery."""
        return get(_delivery(delivery_id), Delivery)

    @listing
    def list_attempts(self, delivery_id: str, **where: Unpack[Paging]) -> Request[Page[Attempt]]:
        """List the attempts of a delivery in order."""
        return listed(_delivery(delivery_id) + "/attempts", Attempt, where)

    @operation
    def redeliver(self, delivery_id: str) -> Request[Delivery]:
        """Send a delivery again, with the same id and a fresh schedule."""
        return send("POST", _delivery(delivery_id) + "/redeliver", Delivery)

    @operation
    def send_as_new(self, delivery_id: str) -> Request[Delivery]:
        """Send a delivery's event to its endpoint under a new id."""
        return send("POST", _delivery(delivery_id) + "/send-as-new", Delivery)

    @operation
    def cancel_delivery(self, delivery_id: str) -> Request[Delivery]:
        """Cancel a pending delivery. One in flight is let finish."""
        return send("POST", _delivery(delivery_id) + "/cancel", Delivery)


def _with_data(members: Mapping[str, Any], data: Any) -> bytes:
    raw = data.content if isinstance(data, RawJson) else encode_json(data)
    return b'%b,"data":%b}' % (encode_members(members)[:-1], raw)


def _delivery(delivery_id: str) -> str:
    return f"/v1/deliveries/{segment('delivery_id', delivery_id)}"
