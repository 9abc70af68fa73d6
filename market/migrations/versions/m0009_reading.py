"""What people read: clearing rounds, beats, debits by job, events by the block of their names."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go to this revision."""
    op.create_table(
        "clearing_rounds",
        sa.Column("number", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("job", sa.LargeBinary(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("slots", sa.BigInteger(), nullable=False),
        sa.Column("spares", sa.BigInteger(), nullable=False),
        sa.Column("reserve", sa.Numeric(precision=40, scale=0), nullable=False),
        sa.Column("asks", sa.BigInteger(), nullable=False),
        sa.Column("is_bought", sa.Boolean(), nullable=False),
        sa.Column("price", sa.Numeric(precision=40, scale=0), nullable=True),
        sa.Column("winners", sa.LargeBinary(), nullable=False),
        sa.Column("excluded", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_clearing_rounds")),
    )
    for name in ("job", "is_bought"):
        op.create_index(op.f(f"ix_clearing_rounds_{name}"), "clearing_rounds", [name])
    op.create_table(
        "beats",
        sa.Column("queue", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("queue", name=op.f("pk_beats")),
    )
    op.create_index(op.f("ix_epoch_debits_job"), "epoch_debits", ["job"])
    op.create_index(op.f("ix_chain_events_block_hash"), "chain_events", ["block_hash"])


def downgrade() -> None:
    """Go back."""
    op.drop_index(op.f("ix_chain_events_block_hash"), "chain_events")
    op.drop_index(op.f("ix_epoch_debits_job"), "epoch_debits")
    op.drop_table("beats")
    op.drop_table("clearing_rounds")
