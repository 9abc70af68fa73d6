"""Operations: what posters ask of their jobs while these last."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_NUMBERS = ("wish", "heeded")


def upgrade() -> None:
    """Go to this revision."""
    op.add_column("jobs", sa.Column("wanted", sa.Text(), nullable=False, server_default="running"))
    for name in _NUMBERS:
        op.add_column("jobs", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("wished_at", sa.BigInteger(), nullable=True))
    for name in ("wanted", *_NUMBERS):  # filled in for the jobs that there are, and no longer
        op.alter_column("jobs", name, server_default=None)
    op.create_table(
        "operations",
        sa.Column("operation", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("job", sa.LargeBinary(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("wish", sa.BigInteger(), nullable=False),
        sa.Column("asked_at", sa.BigInteger(), nullable=False),
        sa.Column("superseded", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("operation", name=op.f("pk_operations")),
    )
    op.create_index(op.f("ix_operations_job"), "operations", ["job"])


def downgrade() -> None:
    """Go back."""
    op.drop_table("operations")
    for name in ("wanted", *_NUMBERS, "wished_at"):
        op.drop_column("jobs", name)
