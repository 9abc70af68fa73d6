"""Attempts: a transaction of the same nonce for each price that was offered."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

TABLE, KEY = "pending_transactions", "pk_pending_transactions"


def upgrade() -> None:
    """Go to this revision."""
    op.add_column(TABLE, sa.Column("attempt", sa.BigInteger(), nullable=False, server_default="0"))
    op.alter_column(TABLE, "attempt", server_default=None)
    op.drop_constraint(op.f(KEY), TABLE, type_="primary")
    op.create_primary_key(op.f(KEY), TABLE, ["account", "nonce", "attempt"])


def downgrade() -> None:
    """Go back."""
    op.execute(f"DELETE FROM {TABLE} WHERE attempt > 0")
    op.drop_constraint(op.f(KEY), TABLE, type_="primary")
    op.create_primary_key(op.f(KEY), TABLE, ["account", "nonce"])
    op.drop_column(TABLE, "attempt")
