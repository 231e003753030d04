"""The provider SDK: publish events inside your own transaction."""

from sender.errors import IdempotencyConflict, PublishError
from sender.publish import NewEvent, Published, publish, publish_async, publish_many
from sender.sqlite import configure_sqlite
from sender.tables import is_surehook, metadata

__all__ = [
    "IdempotencyConflict",
    "NewEvent",
    "PublishError",
    "Published",
    "configure_sqlite",
    "is_surehook",
    "metadata",
    "publish",
    "publish_async",
    "publish_many",
]
