"""Snapshots name the root whose leaves they show, instead of repeating them."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go to this revision. Snapshots from before hold their leaves, under no root."""
    none = sa.text("decode(repeat('00', 32), 'hex')")
    op.add_column(
        "snapshots", sa.Column("root", sa.LargeBinary(), nullable=False, server_default=none)
    )
    op.alter_column("snapshots", "root", server_default=None)


def downgrade() -> None:
    """Go back."""
    op.drop_column("snapshots", "root")
