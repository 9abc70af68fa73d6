"""Checking: outside auditors, the lists that jobs fix of them, convictions and slashes."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go to this revision."""
    op.create_table(
        "auditors",
        sa.Column("account", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("session_key", sa.LargeBinary(), nullable=False),
        sa.Column("device_class", sa.Text(), nullable=False),
        sa.Column("signed_at", sa.BigInteger(), nullable=False),
        sa.Column("signature", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("account", name=op.f("pk_auditors")),
        sa.UniqueConstraint("session_key", name=op.f("uq_auditors_session_key")),
    )
    op.create_table(
        "auditor_lists",
        sa.Column("job", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("block", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_auditor_lists")),
    )
    op.create_table(
        "listed_auditors",
        sa.Column("job", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("account", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("session_key", sa.LargeBinary(), nullable=False),
        sa.Column("device_class", sa.Text(), nullable=False),
        sa.Column("stake", sa.Numeric(precision=40, scale=0), nullable=False),
        sa.PrimaryKeyConstraint("job", "account", name=op.f("pk_listed_auditors")),
    )
    op.create_index(op.f("ix_listed_auditors_account"), "listed_auditors", ["account"])
    op.create_table(
        "convictions",
        sa.Column("job", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("subject", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("account", sa.LargeBinary(), nullable=False),
        sa.Column("wanted", sa.Numeric(precision=40, scale=0), nullable=False),
        sa.Column("owed", sa.Numeric(precision=40, scale=0), nullable=False),
        sa.Column("challenger", sa.LargeBinary(), nullable=False),
        sa.Column("auditors", sa.LargeBinary(), nullable=False),
        sa.Column("evidence", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("job", "subject", name=op.f("pk_convictions")),
        sa.UniqueConstraint("evidence", name=op.f("uq_convictions_evidence")),
    )
    _slashes()


def _slashes() -> None:
    amounts = ("amount", "restitution", "bounty", "burned")
    op.create_table(
        "slashes",
        sa.Column("evidence", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("job", sa.LargeBinary(), nullable=False),
        sa.Column("account", sa.LargeBinary(), nullable=False),
        sa.Column("wanted", sa.Numeric(precision=40, scale=0), nullable=False),
        sa.Column("owed", sa.Numeric(precision=40, scale=0), nullable=False),
        sa.Column("challenger", sa.LargeBinary(), nullable=False),
        sa.Column("convicted_at", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        *(sa.Column(name, sa.Numeric(precision=40, scale=0), nullable=False) for name in amounts),
        sa.Column("case", sa.BigInteger(), nullable=True),
        sa.Column("contest", sa.LargeBinary(), nullable=True),
        sa.Column("announced_by", sa.LargeBinary(), nullable=True),
        sa.Column("ended_by", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("evidence", name=op.f("pk_slashes")),
        sa.UniqueConstraint("case", name=op.f("uq_slashes_case")),
    )
    for name in ("account", "job", "state"):
        op.create_index(op.f(f"ix_slashes_{name}"), "slashes", [name])


def downgrade() -> None:
    """Go back."""
    for name in ("account", "job", "state"):
        op.drop_index(op.f(f"ix_slashes_{name}"), table_name="slashes")
    op.drop_table("slashes")
    op.drop_table("convictions")
    op.drop_index(op.f("ix_listed_auditors_account"), table_name="listed_auditors")
    op.drop_table("listed_auditors")
    op.drop_table("auditor_lists")
    op.drop_table("auditors")
