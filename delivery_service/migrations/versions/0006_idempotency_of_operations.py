"""Idempotency keys of operations.

Revision ID: 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0006"
down_revision: str | None = "0005"
branch_labels: str | None = None
depends_on: str | None = None

INDEX = "uq_surehook_operations_idempotency_key"


def upgrade() -> None:
    """Add columns, and the index that keeps keys unique."""
    op.add_column("surehook_operations", sa.Column("idempotency_key", sa.Text()))
    op.add_column("surehook_operations", sa.Column("fingerprint", sa.LargeBinary()))
    has_key = sa.text("idempotency_key IS NOT NULL")
    op.create_index(
        INDEX,
        "surehook_operations",
        ["idempotency_key"],
        unique=True,
        postgresql_where=has_key,
        sqlite_where=has_key,
    )


def downgrade() -> None:
    """Remove what `upgrade` added."""
    op.drop_index(INDEX, table_name="surehook_operations")
    op.drop_column("surehook_operations", "fingerprint")
    op.drop_column("surehook_operations", "idempotency_key")
