"""Blobs belong to accounts, which are charged for them; blobs of before belong to nobody."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go to this revision."""
    data, number = sa.LargeBinary(), sa.BigInteger()
    op.create_table(
        "blob_owners",
        sa.Column("account", data, autoincrement=False, nullable=False),
        sa.Column("blob", data, autoincrement=False, nullable=False),
        sa.Column("num_bytes", number, nullable=False),
        sa.Column("stored_at", number, nullable=False),
        sa.PrimaryKeyConstraint("account", "blob", name=op.f("pk_blob_owners")),
    )
    op.create_index(op.f("ix_blob_owners_blob"), "blob_owners", ["blob"])
    op.create_table(
        "blob_uploads",
        sa.Column("number", number, sa.Identity(), nullable=False),
        sa.Column("account", data, nullable=False),
        sa.Column("blob", data, nullable=False),
        sa.Column("num_bytes", number, nullable=False),
        sa.Column("began_at", number, nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_blob_uploads")),
    )
    op.create_table(
        "blob_uses",
        sa.Column("account", data, autoincrement=False, nullable=False),
        sa.Column("num_bytes", number, nullable=False),
        sa.PrimaryKeyConstraint("account", name=op.f("pk_blob_uses")),
    )
    op.create_index(op.f("ix_jobs_poster"), "jobs", ["poster"])
    op.create_index(op.f("ix_leases_account"), "leases", ["account"])
    op.create_index(op.f("ix_listed_auditors_session_key"), "listed_auditors", ["session_key"])


def downgrade() -> None:
    """Go back."""
    op.drop_index(op.f("ix_listed_auditors_session_key"), "listed_auditors")
    op.drop_index(op.f("ix_leases_account"), "leases")
    op.drop_index(op.f("ix_jobs_poster"), "jobs")
    op.drop_table("blob_uses")
    op.drop_table("blob_uploads")
    op.drop_table("blob_owners")
