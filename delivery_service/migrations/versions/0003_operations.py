"""Bulk operations.

Revision ID: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0003"
down_revision: str | None = "0002"
branch_labels: str | None = None
depends_on: str | None = None

ID = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "surehook_operations",
        sa.Column("id", ID, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("filter", sa.JSON(), nullable=False),
        sa.Column("data", sa.LargeBinary()),
        sa.Column("status", sa.Text(), server_default="queued", nullable=False),
        sa.Column("first", ID),
        sa.Column("cursor", ID),
        sa.Column("matched", sa.Integer(), server_default="0", nullable=False),
        sa.Column("done", sa.Integer(), server_default="0", nullable=False),
        sa.Column("passed_over", sa.JSON(), nullable=False),
        sa.Column("error", sa.Text()),
        sa.Column("lease_until", MOMENT),
        sa.Column("lease_token", sa.Text()),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("updated_at", MOMENT, nullable=False),
        sa.Column("ended_at", MOMENT),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_surehook_operations")),
    )
    is_open = sa.text("ended_at IS NULL")
    op.create_index(
        "ix_surehook_operations_open",
        "surehook_operations",
        ["id"],
        postgresql_where=is_open,
        sqlite_where=is_open,
    )


def downgrade() -> None:
    """Remove what `upgrade` added."""
    op.drop_table("surehook_operations")
