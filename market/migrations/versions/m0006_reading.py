"""What people read: debits by job, and a chain event by the block that the ledger names."""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go to this revision."""
    op.create_index(op.f("ix_epoch_debits_job"), "epoch_debits", ["job"])
    op.create_index(op.f("ix_chain_events_block_hash"), "chain_events", ["block_hash"])


def downgrade() -> None:
    """Go back."""
    op.drop_index(op.f("ix_chain_events_block_hash"), "chain_events")
    op.drop_index(op.f("ix_epoch_debits_job"), "epoch_debits")
