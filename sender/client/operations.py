"""All operations of the API, one method each."""

from __future__ import annotations

from sender.client.administering import (
    EndpointOperations,
    KeyOperations,
    ServiceOperations,
    TenantOperations,
)
from sender.client.bulk import BulkOperations
from sender.client.catalogue import AuditOperations, CatalogueOperations
from sender.client.publishing import DeliveryOperations, EventOperations


class Operations(
    EventOperations,
    DeliveryOperations,
    EndpointOperations,
    TenantOperations,
    KeyOperations,
    BulkOperations,
    CatalogueOperations,
    AuditOperations,
    ServiceOperations,
):
    """All operations. A new one is one method of one of these classes, for both clients."""
