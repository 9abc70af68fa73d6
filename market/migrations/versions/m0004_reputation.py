"""Reputation: outcomes by account, and how far each job's are counted."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go to this revision."""
    op.create_table(
        "reputations",
        sa.Column("account", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("matches", sa.BigInteger(), nullable=False),
        sa.Column("mismatches", sa.BigInteger(), nullable=False),
        sa.Column("kept", sa.BigInteger(), nullable=False),
        sa.Column("missed", sa.BigInteger(), nullable=False),
        sa.Column("liveness", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("account", name=op.f("pk_reputations")),
    )
    op.create_table(
        "counted_outcomes",
        sa.Column("job", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_counted_outcomes")),
    )


def downgrade() -> None:
    """Go back."""
    op.drop_table("counted_outcomes")
    op.drop_table("reputations")
