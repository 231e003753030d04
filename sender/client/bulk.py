"""Operations on bulk work and broadcasts, named as in the API's OpenAPI document."""

from __future__ import annotations

from typing import Any, Unpack

from sender.client.binding import listing, operation
from sender.client.given import NewOperation, OperationFilter
from sender.client.reading import Answer, read_result
from sender.client.request import (
    JSON,
    Request,
    encode_members,
    get,
    keyed,
    listed,
    segment,
    send,
)
from sender.client.results import Page
from sender.client.traffic import Operation, OperationCount
from wire.envelope import encode_json
from wire.rawjson import RawJson

COUNTED = 200
"""Status of the answer to a dry run."""


class BulkOperations:
    """Work on many deliveries, and events for all tenants, in the background."""

    @operation
    def create_operation(
        self, *, kind: str, idempotency_key: str | None = None, **members: Unpack[NewOperation]
    ) -> Request[Operation | OperationCount]:
        """Redeliver or cancel many deliveries (``recover``, ``replay``, ``cancel``), or publish an
        event for all tenants (``broadcast``).

        Gives the queued `Operation`, or with ``dry_run`` the `OperationCount`. ``data`` of a
        broadcast travels byte for byte, as in ``publish``. All tries of a call carry one
        idempotency key, a fresh one unless it is given, so they make one operation.
        """
        given: dict[str, Any] = {"kind": kind, **members}
        has_data = "data" in given
        data = given.pop("data", None)
        body = encode_members(given)
        if has_data:
            raw = data.content if isinstance(data, RawJson) else encode_json(data)
            body = b'%b,"data":%b}' % (body[:-1], raw)
        return Request(
            "POST",
            "/v1/operations",
            _read_created,
            body=body,
            headers={**keyed(idempotency_key), "content-type": JSON},
            repeatable=True,
        )

    @listing
    def list_operations(self, **where: Unpack[OperationFilter]) -> Request[Page[Operation]]:
        """List operations, newest first."""
        return listed("/v1/operations", Operation, where)

    @operation
    def read_operation(self, operation_id: str) -> Request[Operation]:
        """Show an operation and its progress."""
        return get(_operation(operation_id), Operation)

    @operation
    def cancel_operation(self, operation_id: str) -> Request[Operation]:
        """Stop an operation after the batch that is under way. What it has done stays."""
        return send("POST", _operation(operation_id) + "/cancel", Operation)


def _read_created(answer: Answer) -> Operation | OperationCount:
    if answer.status == COUNTED:
        return read_result(OperationCount, answer)
    return read_result(Operation, answer)


def _operation(operation_id: str) -> str:
    return f"/v1/operations/{segment('operation_id', operation_id)}"
