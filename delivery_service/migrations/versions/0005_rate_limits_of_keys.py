"""Rate limits of API keys, and portal tokens.

Revision ID: 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0005"
down_revision: str | None = "0004"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    """Add columns."""
    op.add_column("surehook_api_keys", sa.Column("rate_limit", sa.Integer()))
    op.add_column("surehook_api_keys", sa.Column("rate_window", sa.JSON()))
    op.add_column(
        "surehook_api_keys",
        sa.Column("portal", sa.Boolean(), server_default=sa.false(), nullable=False),
    )


def downgrade() -> None:
    """Remove what `upgrade` added."""
    op.drop_column("surehook_api_keys", "portal")
    op.drop_column("surehook_api_keys", "rate_window")
    op.drop_column("surehook_api_keys", "rate_limit")
