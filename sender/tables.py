"""Every table of Surehook, the same on PostgreSQL and SQLite.

They live in the platform's own database beside its own tables: all names start with
``surehook_``, nothing references a foreign table, and ``is_surehook`` keeps the platform's
Alembic autogenerate away from them.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    false,
    text,
)

from sender.types import Id, UtcDateTime

PREFIX = "surehook_"

SEALED = "surehook_sealed"
"""Set in the ``info`` of columns that hold what is encrypted under the service's
``encryption_keys``: `surehook secrets rotate-encryption` finds them by it."""

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

tenants = Table(
    PREFIX + "tenants",
    metadata,
    Column("id", Id, primary_key=True),
    Column("name", Text),
    Column("schedule", Text),
    Column("profiles", JSON),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    # Requests a second to each of its endpoints that has no limit of its own.
    Column("rate_limit", Float),
)

endpoints = Table(
    PREFIX + "endpoints",
    metadata,
    Column("id", Id, primary_key=True),
    Column("tenant_id", Id, nullable=False),
    Column("url", Text, nullable=False),
    Column("description", Text, nullable=False, server_default=""),
    Column("event_types", JSON),
    Column("status", Text, nullable=False, server_default="enabled"),
    Column("disabled_reason", Text),
    Column("disabled_at", UtcDateTime),
    Column("deleted_at", UtcDateTime),
    Column("schedule", Text),
    Column("profiles", JSON),
    Column("timeout", Float),
    Column("max_in_flight", Integer),
    Column("rate_limit", Float),
    # Custom headers and TLS material may hold credentials: encrypted JSON.
    Column("headers", LargeBinary, info={SEALED: True}),
    Column("tls", LargeBinary, info={SEALED: True}),
    # Counts changes of anything above and of the secrets, so that a worker knows when what it
    # has parsed and decrypted is out of date.
    Column("version", Integer, nullable=False, server_default="1"),
    # The circuit: shared by all workers, changed only when it changes.
    Column("circuit", Text, nullable=False, server_default="closed"),
    Column("failures", Integer, nullable=False, server_default="0"),
    Column("failing_since", UtcDateTime),
    Column("pauses", Integer, nullable=False, server_default="0"),
    Column("paused_until", UtcDateTime),
    # When the rate limit lets the next request start (GCRA's theoretical arrival time).
    Column("rate_next_at", UtcDateTime),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    # The platform's own id of the endpoint, and whatever it wants to remember with it.
    Column("uid", Id),
    Column("metadata", JSON),
    # What an event must have beside its type: one of the channels, and data that the filter fits.
    Column("channels", JSON(none_as_null=True)),
    Column("filter", JSON(none_as_null=True)),
    # How requests show the receiver who we are: encrypted JSON.
    Column("authentication", LargeBinary, info={SEALED: True}),
    # When the receiver proved that it wants what is sent to this URL.
    Column("verified_at", UtcDateTime),
    Index("ix_surehook_endpoints_tenant", "tenant_id", "id"),
    Index(
        "uq_surehook_endpoints_uid",
        "tenant_id",
        "uid",
        unique=True,
        postgresql_where=text("uid IS NOT NULL AND deleted_at IS NULL"),
        sqlite_where=text("uid IS NOT NULL AND deleted_at IS NULL"),
    ),
)

secrets = Table(
    PREFIX + "secrets",
    metadata,
    Column("id", Id, primary_key=True),
    Column("endpoint_id", Id, nullable=False),
    Column("ciphertext", LargeBinary, nullable=False, info={SEALED: True}),
    Column("created_at", UtcDateTime, nullable=False),
    # Set when a newer secret replaced this one: it signs until then, beside the newer.
    Column("expires_at", UtcDateTime),
    Index("ix_surehook_secrets_endpoint", "endpoint_id", "id"),
)

events = Table(
    PREFIX + "events",
    metadata,
    Column("id", Id, primary_key=True),
    Column("tenant_id", Id, nullable=False),
    Column("type", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("content_type", Text, nullable=False),
    Column("idempotency_key", Text),
    # SHA-256 of what was published: tells a repeat of the key from a misuse of it.
    Column("fingerprint", LargeBinary),
    Column("trace_context", Text),
    Column("created_at", UtcDateTime, nullable=False),
    # Set when the body was deleted for privacy; the history stays.
    Column("body_deleted_at", UtcDateTime),
    # Separated by spaces.
    Column("channels", Text),
    # When the first attempt is due, if not at once.
    Column("deliver_at", UtcDateTime),
    Index("ix_surehook_events_tenant", "tenant_id", "id"),
    Index(
        "uq_surehook_events_idempotency_key",
        "tenant_id",
        "idempotency_key",
        unique=True,
        postgresql_where=text("idempotency_key IS NOT NULL"),
        sqlite_where=text("idempotency_key IS NOT NULL"),
    ),
    # Finds the keys that have expired, however many events have none (any more).
    Index(
        "ix_surehook_events_keyed",
        "id",
        postgresql_where=text("idempotency_key IS NOT NULL"),
        sqlite_where=text("idempotency_key IS NOT NULL"),
    ),
)

deliveries = Table(
    PREFIX + "deliveries",
    metadata,
    Column("id", Id, primary_key=True),
    Column("event_id", Id, nullable=False),
    Column("endpoint_id", Id, nullable=False),
    Column("tenant_id", Id, nullable=False),
    Column("event_type", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("reason", Text),
    # True once it ended as anything but delivered. A column of its own, because an index on
    # `status` would make every update of it touch every index (no HOT): see
    # docs/decisions/0001-queue-table.md.
    Column("undelivered", Boolean, nullable=False, server_default=false()),
    Column("attempts", Integer, nullable=False, server_default="0"),
    # Attempts made before the current run through the schedule: redeliver starts it afresh.
    Column("attempts_before", Integer, nullable=False, server_default="0"),
    Column("copy_of", Id),
    Column("created_at", UtcDateTime, nullable=False),
    Column("ended_at", UtcDateTime),
    # The outcome of the latest attempt. In no index, as all that an attempt changes here.
    Column("last_outcome", Text),
    Index("ix_surehook_deliveries_tenant", "tenant_id", "id"),
    Index("ix_surehook_deliveries_endpoint", "endpoint_id", "id"),
    Index("ix_surehook_deliveries_event", "event_id"),
    Index(
        "ix_surehook_deliveries_undelivered",
        "id",
        postgresql_where=text("undelivered"),
        sqlite_where=text("undelivered"),
    ),
    postgresql_with={"fillfactor": "80"},
)

queue = Table(
    PREFIX + "queue",
    metadata,
    Column("delivery_id", Id, primary_key=True),
    Column("endpoint_id", Id, nullable=False),
    # 0 = first attempts, 1 = retries and bulk work. Claims go round over (endpoint, lane), so a
    # backlog of retries never starves first attempts, nor the other way round.
    Column("lane", SmallInteger, nullable=False, server_default="0"),
    Column("due_at", UtcDateTime, nullable=False),
    Column("claims", SmallInteger, nullable=False, server_default="0"),
    Column("lease_token", Text),
    Index("ix_surehook_queue_lane", "endpoint_id", "lane", "due_at"),
    Index("ix_surehook_queue_due", "due_at"),
    # Every claim and record leaves a dead row here; the default of 20 % of the table plus 50
    # lets a large backlog grow stale before autovacuum looks at it.
    postgresql_with={
        "autovacuum_vacuum_scale_factor": "0.02",
        "autovacuum_vacuum_cost_delay": "0",
    },
)

attempts = Table(
    PREFIX + "attempts",
    metadata,
    Column("id", Id, primary_key=True),
    Column("delivery_id", Id, nullable=False),
    Column("endpoint_id", Id, nullable=False),
    Column("number", Integer, nullable=False),
    Column("late", Boolean, nullable=False, server_default=false()),
    Column("started_at", UtcDateTime, nullable=False),
    Column("duration", Float, nullable=False),
    Column("url", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("status_code", Integer),
    Column("error", Text),
    Column("may_have_arrived", Boolean, nullable=False),
    Column("request_headers", Text, nullable=False),
    Column("response_headers", Text),
    Column("response_body", LargeBinary),
    Column("response_truncated", Boolean, nullable=False),
    Index("ix_surehook_attempts_delivery", "delivery_id", "number"),
    Index("ix_surehook_attempts_endpoint", "endpoint_id", "id"),
)

api_keys = Table(
    PREFIX + "api_keys",
    metadata,
    Column("id", Id, primary_key=True),
    Column("name", Text, nullable=False),
    # SHA-256 of the key. The key has 256 random bits, so a slow hash would add nothing.
    Column("digest", LargeBinary, nullable=False, unique=True),
    Column("hint", Text, nullable=False),
    Column("scope", Text, nullable=False),
    Column("tenant_id", Id),
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime),
    Column("revoked_at", UtcDateTime),
    Column("last_used_at", UtcDateTime),
    # Requests in a window of the setting `key_rate_window`; none of its own: `key_rate_limit`.
    Column("rate_limit", Integer),
    # What was counted in the window so far; only for keys with a limit.
    Column("rate_window", JSON(none_as_null=True)),
    # A short-lived token for a person in the portal.
    Column("portal", Boolean, nullable=False, server_default=false()),
)

workers = Table(
    PREFIX + "workers",
    metadata,
    Column("id", Id, primary_key=True),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("started_at", UtcDateTime, nullable=False),
    Column("seen_at", UtcDateTime, nullable=False),
)


event_types = Table(
    PREFIX + "event_types",
    metadata,
    Column("name", Id, primary_key=True),
    Column("description", Text, nullable=False, server_default=""),
    Column("schema", JSON(none_as_null=True)),
    Column("validation", Text, nullable=False, server_default="off"),
    Column("example", JSON(none_as_null=True)),
    Column("archived_at", UtcDateTime),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
)

# Who changed what: rows are only ever added here. Secrets are left out of `before` and `after`.
audit_log = Table(
    PREFIX + "audit_log",
    metadata,
    Column("id", Id, primary_key=True),
    Column("at", UtcDateTime, nullable=False),
    Column("actor", Id, nullable=False),
    Column("tenant_id", Id),
    Column("action", Text, nullable=False),
    Column("target", Id, nullable=False),
    Column("before", JSON(none_as_null=True)),
    Column("after", JSON(none_as_null=True)),
    Index("ix_surehook_audit_log_tenant", "tenant_id", "id"),
    Index("ix_surehook_audit_log_target", "target", "id"),
)

# Bulk work on deliveries, and broadcasts: done in batches, each with the cursor in one transaction.
operations = Table(
    PREFIX + "operations",
    metadata,
    Column("id", Id, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("filter", JSON, nullable=False),
    # A broadcast's data, byte for byte.
    Column("data", LargeBinary),
    Column("status", Text, nullable=False, server_default="queued"),
    # The first and the last row looked at: id of a delivery, or a tenant's.
    Column("first", Id),
    Column("cursor", Id),
    Column("matched", Integer, nullable=False, server_default="0"),
    Column("done", Integer, nullable=False, server_default="0"),
    Column("passed_over", JSON, nullable=False),
    Column("error", Text),
    Column("lease_until", UtcDateTime),
    Column("lease_token", Text),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    Column("ended_at", UtcDateTime),
    # As those of events, but of the platform as a whole.
    Column("idempotency_key", Text),
    Column("fingerprint", LargeBinary),
    Index(
        "ix_surehook_operations_open",
        "id",
        postgresql_where=text("ended_at IS NULL"),
        sqlite_where=text("ended_at IS NULL"),
    ),
    Index(
        "uq_surehook_operations_idempotency_key",
        "idempotency_key",
        unique=True,
        postgresql_where=text("idempotency_key IS NOT NULL"),
        sqlite_where=text("idempotency_key IS NOT NULL"),
    ),
)


def is_surehook(name: str | None) -> bool:
    """Whether a table or index belongs to Surehook.

    For the platform's own Alembic ``env.py``, so that autogenerate leaves these tables alone::

        context.configure(
            ..., include_name=lambda name, kind, parents: not is_surehook(name)
        )
    """
    return (name or "").startswith(tuple(kind + PREFIX for kind in ("", "ix_", "uq_", "pk_")))
