"""Weights that are here whole, or that a member could not upload, and why."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go to this revision."""
    is_here: sa.Column[bool] = sa.Column(
        "is_here", sa.Boolean(), nullable=False, server_default=sa.false()
    )
    failure: sa.Column[str] = sa.Column("failure", sa.Text(), nullable=False, server_default="")
    op.add_column("checkpoints", is_here)
    op.add_column("checkpoints", failure)
    op.alter_column("checkpoints", "is_here", server_default=None)
    op.alter_column("checkpoints", "failure", server_default=None)


def downgrade() -> None:
    """Go back."""
    op.drop_column("checkpoints", "failure")
    op.drop_column("checkpoints", "is_here")
