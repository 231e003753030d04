"""The first tables.

Revision ID: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0001"
down_revision: str | None = None
branch_labels: str | None = None
depends_on: str | None = None

ID = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
MOMENT = sa.DateTime(timezone=True)

TABLES = (
    "tenants",
    "endpoints",
    "secrets",
    "events",
    "deliveries",
    "queue",
    "attempts",
    "api_keys",
    "workers",
)


def upgrade() -> None:
    """Create every table."""
    _create_tenants()
    _create_endpoints()
    _create_secrets()
    _create_events()
    _create_deliveries()
    _create_queue()
    _create_attempts()
    _create_api_keys()
    _create_workers()


def downgrade() -> None:
    """Drop every table, with its indexes."""
    for name in reversed(TABLES):
        op.drop_table(f"surehook_{name}")


def _create_tenants() -> None:
    op.create_table(
        "surehook_tenants",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.Text()),
        sa.Column("schedule", sa.Text()),
        sa.Column("profiles", sa.JSON()),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("updated_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_surehook_tenants")),
    )


def _create_endpoints() -> None:
    op.create_table(
        "surehook_endpoints",
        sa.Column("id", ID, nullable=False),
        sa.Column("tenant_id", ID, nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), server_default="", nullable=False),
        sa.Column("event_types", sa.JSON()),
        sa.Column("status", sa.Text(), server_default="enabled", nullable=False),
        sa.Column("disabled_reason", sa.Text()),
        sa.Column("disabled_at", MOMENT),
        sa.Column("deleted_at", MOMENT),
        sa.Column("schedule", sa.Text()),
        sa.Column("profiles", sa.JSON()),
        sa.Column("timeout", sa.Float()),
        sa.Column("max_in_flight", sa.Integer()),
        sa.Column("rate_limit", sa.Float()),
        sa.Column("headers", sa.LargeBinary()),
        sa.Column("tls", sa.LargeBinary()),
        sa.Column("version", sa.Integer(), server_default="1", nullable=False),
        sa.Column("circuit", sa.Text(), server_default="closed", nullable=False),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("failing_since", MOMENT),
        sa.Column("pauses", sa.Integer(), server_default="0", nullable=False),
        sa.Column("paused_until", MOMENT),
        sa.Column("rate_next_at", MOMENT),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("updated_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_surehook_endpoints")),
    )
    op.create_index("ix_surehook_endpoints_tenant", "surehook_endpoints", ["tenant_id", "id"])


def _create_secrets() -> None:
    op.create_table(
        "surehook_secrets",
        sa.Column("id", ID, nullable=False),
        sa.Column("endpoint_id", ID, nullable=False),
        sa.Column("ciphertext", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("expires_at", MOMENT),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_surehook_secrets")),
    )
    op.create_index("ix_surehook_secrets_endpoint", "surehook_secrets", ["endpoint_id", "id"])


def _create_events() -> None:
    op.create_table(
        "surehook_events",
        sa.Column("id", ID, nullable=False),
        sa.Column("tenant_id", ID, nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("content_type", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text()),
        sa.Column("fingerprint", sa.LargeBinary()),
        sa.Column("trace_context", sa.Text()),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_surehook_events")),
    )
    op.create_index("ix_surehook_events_tenant", "surehook_events", ["tenant_id", "id"])
    op.create_index(
        "uq_surehook_events_idempotency_key",
        "surehook_events",
        ["tenant_id", "idempotency_key"],
        unique=True,
        postgresql_where=sa.text("idempotency_key IS NOT NULL"),
        sqlite_where=sa.text("idempotency_key IS NOT NULL"),
    )
    op.create_index(
        "ix_surehook_events_keyed",
        "surehook_events",
        ["id"],
        postgresql_where=sa.text("idempotency_key IS NOT NULL"),
        sqlite_where=sa.text("idempotency_key IS NOT NULL"),
    )


def _create_deliveries() -> None:
    op.create_table(
        "surehook_deliveries",
        sa.Column("id", ID, nullable=False),
        sa.Column("event_id", ID, nullable=False),
        sa.Column("endpoint_id", ID, nullable=False),
        sa.Column("tenant_id", ID, nullable=False),
        sa.Column("event_type", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("undelivered", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("attempts_before", sa.Integer(), server_default="0", nullable=False),
        sa.Column("copy_of", ID),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("ended_at", MOMENT),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_surehook_deliveries")),
        postgresql_with={"fillfactor": "80"},
    )
    op.create_index("ix_surehook_deliveries_endpoint", "surehook_deliveries", ["endpoint_id", "id"])
    op.create_index("ix_surehook_deliveries_event", "surehook_deliveries", ["event_id"])
    op.create_index("ix_surehook_deliveries_tenant", "surehook_deliveries", ["tenant_id", "id"])
    op.create_index(
        "ix_surehook_deliveries_undelivered",
        "surehook_deliveries",
        ["id"],
        postgresql_where=sa.text("undelivered"),
        sqlite_where=sa.text("undelivered"),
    )


def _create_queue() -> None:
    op.create_table(
        "surehook_queue",
        sa.Column("delivery_id", ID, nullable=False),
        sa.Column("endpoint_id", ID, nullable=False),
        sa.Column("lane", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("due_at", MOMENT, nullable=False),
        sa.Column("claims", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("lease_token", sa.Text()),
        sa.PrimaryKeyConstraint("delivery_id", name=op.f("pk_surehook_queue")),
        postgresql_with={
            "autovacuum_vacuum_scale_factor": "0.02",
            "autovacuum_vacuum_cost_delay": "0",
        },
    )
    op.create_index("ix_surehook_queue_due", "surehook_queue", ["due_at"])
    op.create_index("ix_surehook_queue_lane", "surehook_queue", ["endpoint_id", "lane", "due_at"])


def _create_attempts() -> None:
    op.create_table(
        "surehook_attempts",
        sa.Column("id", ID, nullable=False),
        sa.Column("delivery_id", ID, nullable=False),
        sa.Column("endpoint_id", ID, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("late", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("started_at", MOMENT, nullable=False),
        sa.Column("duration", sa.Float(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("status_code", sa.Integer()),
        sa.Column("error", sa.Text()),
        sa.Column("may_have_arrived", sa.Boolean(), nullable=False),
        sa.Column("request_headers", sa.Text(), nullable=False),
        sa.Column("response_headers", sa.Text()),
        sa.Column("response_body", sa.LargeBinary()),
        sa.Column("response_truncated", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_surehook_attempts")),
    )
    op.create_index("ix_surehook_attempts_delivery", "surehook_attempts", ["delivery_id", "number"])


def _create_api_keys() -> None:
    op.create_table(
        "surehook_api_keys",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("hint", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("tenant_id", ID),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("expires_at", MOMENT),
        sa.Column("revoked_at", MOMENT),
        sa.Column("last_used_at", MOMENT),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_surehook_api_keys")),
        sa.UniqueConstraint("digest", name=op.f("uq_surehook_api_keys_digest")),
    )


def _create_workers() -> None:
    op.create_table(
        "surehook_workers",
        sa.Column("id", ID, nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("started_at", MOMENT, nullable=False),
        sa.Column("seen_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_surehook_workers")),
    )
