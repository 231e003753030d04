"""Operations on event types and payload filters, and the audit log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from sender.client.binding import listing, operation
from sender.client.given import AuditFilter, EventTypeFilter, EventTypeSettings
from sender.client.reading import read_object
from sender.client.request import Request, delete, get, listed, segment, send
from sender.client.results import AuditEntry, EventTypeInfo, FilterVerdict, ImportedEventTypes, Page

OPENAPI = "/v1/event-types-openapi"


class CatalogueOperations:
    """The catalogue of event types."""

    @listing
    def list_event_types(self, **where: Unpack[EventTypeFilter]) -> Request[Page[EventTypeInfo]]:
        """List event types in the order of their names."""
        return listed("/v1/event-types", EventTypeInfo, where)

    @operation
    def read_event_type(self, name: str) -> Request[EventTypeInfo]:
        """Show an event type, archived or not."""
        return get(_event_type(name), EventTypeInfo)

    @operation
    def put_event_type(
        self, name: str, **settings: Unpack[EventTypeSettings]
    ) -> Request[EventTypeInfo]:
        """Register an event type, or replace all of its settings."""
        return send("PUT", _event_type(name), EventTypeInfo, settings, repeatable=True)

    @operation
    def archive_event_type(self, name: str) -> Request[None]:
        """Archive an event type: it is not listed any more, and can still be published."""
        return delete(_event_type(name))

    @operation
    def export_event_types(self) -> Request[dict[str, Any]]:
        """Export the catalogue as an OpenAPI 3.1 document with ``webhooks``."""
        return Request("GET", OPENAPI, read_object, repeatable=True)

    @operation
    def import_event_types(self, document: Mapping[str, Any]) -> Request[ImportedEventTypes]:
        """Put the ``webhooks`` of an OpenAPI 3.1 document into the catalogue."""
        return send("POST", OPENAPI, ImportedEventTypes, document, repeatable=True)

    @operation
    def check_payload_filter(
        self,
        *,
        filter: Mapping[str, Any],  # noqa: A002 - the word of the API
        data: Any,
    ) -> Request[FilterVerdict]:
        """Try a payload filter on data. Nothing is stored or sent."""
        members = {"filter": filter, "data": data}
        return send("POST", "/v1/filters/test", FilterVerdict, members, repeatable=True)


class AuditOperations:
    """The audit log."""

    @listing
    def list_audit_log(self, **where: Unpack[AuditFilter]) -> Request[Page[AuditEntry]]:
        """List who changed what, newest first. Secrets are not in it."""
        return listed("/v1/audit-log", AuditEntry, where)


def _event_type(name: str) -> str:
    return f"/v1/event-types/{segment('name', name)}"
