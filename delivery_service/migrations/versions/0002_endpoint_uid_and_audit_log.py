"""Endpoints' own ids and metadata, deleted bodies, the catalogue of event types, the audit log.

Revision ID: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0002"
down_revision: str | None = "0001"
branch_labels: str | None = None
depends_on: str | None = None

ID = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Add columns and the table."""
    op.add_column("surehook_endpoints", sa.Column("uid", ID))
    op.add_column("surehook_endpoints", sa.Column("metadata", sa.JSON()))
    live = sa.text("uid IS NOT NULL AND deleted_at IS NULL")
    op.create_index(
        "uq_surehook_endpoints_uid",
        "surehook_endpoints",
        ["tenant_id", "uid"],
        unique=True,
        postgresql_where=live,
        sqlite_where=live,
    )
    op.add_column("surehook_events", sa.Column("body_deleted_at", MOMENT))
    op.create_table(
        "surehook_event_types",
        sa.Column("name", ID, nullable=False),
        sa.Column("description", sa.Text(), server_default="", nullable=False),
        sa.Column("schema", sa.JSON()),
        sa.Column("validation", sa.Text(), server_default="off", nullable=False),
        sa.Column("example", sa.JSON()),
        sa.Column("archived_at", MOMENT),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("updated_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_surehook_event_types")),
    )
    op.create_table(
        "surehook_audit_log",
        sa.Column("id", ID, nullable=False),
        sa.Column("at", MOMENT, nullable=False),
        sa.Column("actor", ID, nullable=False),
        sa.Column("tenant_id", ID),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("target", ID, nullable=False),
        sa.Column("before", sa.JSON()),
        sa.Column("after", sa.JSON()),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_surehook_audit_log")),
    )
    op.create_index("ix_surehook_audit_log_tenant", "surehook_audit_log", ["tenant_id", "id"])
    op.create_index("ix_surehook_audit_log_target", "surehook_audit_log", ["target", "id"])


def downgrade() -> None:
    """Remove what `upgrade` added."""
    op.drop_table("surehook_audit_log")
    op.drop_table("surehook_event_types")
    op.drop_column("surehook_events", "body_deleted_at")
    op.drop_index("uq_surehook_endpoints_uid", "surehook_endpoints")
    op.drop_column("surehook_endpoints", "metadata")
    op.drop_column("surehook_endpoints", "uid")
