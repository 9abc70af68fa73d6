"""Evidence: bundles by auditor, the reports that seals hold, and the case before the newest."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go to this revision."""
    op.create_table(
        "evidence",
        sa.Column("job", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("subject", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("auditor", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("bundle", sa.LargeBinary(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job", "subject", "auditor", name=op.f("pk_evidence")),
        sa.UniqueConstraint("bundle", name=op.f("uq_evidence_bundle")),
    )
    none = sa.text("'\\x90'::bytea")  # of convictions from before: an empty list
    op.add_column(
        "convictions", sa.Column("reports", sa.LargeBinary(), nullable=False, server_default=none)
    )
    op.alter_column("convictions", "reports", server_default=None)
    op.add_column("slashes", sa.Column("superseded", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    """Go back."""
    op.drop_column("slashes", "superseded")
    op.drop_column("convictions", "reports")
    op.drop_table("evidence")
