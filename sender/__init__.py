"""The provider's SDK: publish inside your own transaction, or through the service's API."""

from typing import TYPE_CHECKING, Any

from sender.errors import IdempotencyConflict, PublishError
from sender.models import register_event_types
from sender.publish import NewEvent, Published, publish, publish_async, publish_many

if TYPE_CHECKING:
    from sender.client import AsyncClient, Client

__all__ = [
    "AsyncClient",
    "Client",
    "IdempotencyConflict",
    "NewEvent",
    "PublishError",
    "Published",
    "publish",
    "publish_async",
    "publish_many",
    "register_event_types",
]


def __getattr__(name: str) -> Any:
    # Whoever publishes in a transaction of their own needs no HTTP client.
    if name not in ("AsyncClient", "Client"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sender import client  # noqa: PLC0415 - see above

    return getattr(client, name)
