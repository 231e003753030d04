"""Channels, payload filters, authentication and proof of ownership of endpoints, later delivery,
the latest outcome of deliveries, attempts by endpoint, rate limits of tenants.

Revision ID: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0004"
down_revision: str | None = "0003"
branch_labels: str | None = None
depends_on: str | None = None

MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Add columns and the index."""
    op.add_column("surehook_tenants", sa.Column("rate_limit", sa.Float()))
    op.add_column("surehook_endpoints", sa.Column("channels", sa.JSON()))
    op.add_column("surehook_endpoints", sa.Column("filter", sa.JSON()))
    op.add_column("surehook_endpoints", sa.Column("authentication", sa.LargeBinary()))
    op.add_column("surehook_endpoints", sa.Column("verified_at", MOMENT))
    op.add_column("surehook_events", sa.Column("channels", sa.Text()))
    op.add_column("surehook_events", sa.Column("deliver_at", MOMENT))
    op.add_column("surehook_deliveries", sa.Column("last_outcome", sa.Text()))
    op.create_index("ix_surehook_attempts_endpoint", "surehook_attempts", ["endpoint_id", "id"])


def downgrade() -> None:
    """Remove what `upgrade` added."""
    op.drop_index("ix_surehook_attempts_endpoint", "surehook_attempts")
    op.drop_column("surehook_deliveries", "last_outcome")
    op.drop_column("surehook_events", "deliver_at")
    op.drop_column("surehook_events", "channels")
    op.drop_column("surehook_endpoints", "verified_at")
    op.drop_column("surehook_endpoints", "authentication")
    op.drop_column("surehook_endpoints", "filter")
    op.drop_column("surehook_endpoints", "channels")
    op.drop_column("surehook_tenants", "rate_limit")
