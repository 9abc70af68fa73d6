"""Checkpoints: which blob holds a stage's weights, by whose word."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go to this revision."""
    op.create_table(
        "checkpoints",
        sa.Column("job", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("peer", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("stage", sa.BigInteger(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("blob", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("job", "peer", name=op.f("pk_checkpoints")),
    )


def downgrade() -> None:
    """Go back."""
    op.drop_table("checkpoints")
