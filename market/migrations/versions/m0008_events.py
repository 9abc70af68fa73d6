"""Live events: numbered rows of a feed, and how many each feed has."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go to this revision."""
    op.create_table(
        "feeds",
        sa.Column("feed", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("length", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("feed", name=op.f("pk_feeds")),
    )
    op.create_table(
        "events",
        sa.Column("feed", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("feed", "sequence", name=op.f("pk_events")),
    )


def downgrade() -> None:
    """Go back."""
    op.drop_table("events")
    op.drop_table("feeds")
