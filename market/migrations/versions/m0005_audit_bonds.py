"""Audit bonds: what outside auditors reserve for a job before its list names them."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go to this revision."""
    op.create_table(
        "audit_bonds",
        sa.Column("job", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("account", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("session_key", sa.LargeBinary(), nullable=False),
        sa.Column("device_class", sa.Text(), nullable=False),
        sa.Column("price", sa.Numeric(precision=40, scale=0), nullable=False),
        sa.Column("stake", sa.Numeric(precision=40, scale=0), nullable=False),
        sa.Column("asked_at", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("accept", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("job", "account", name=op.f("pk_audit_bonds")),
    )
    for name in ("account", "state"):
        op.create_index(op.f(f"ix_audit_bonds_{name}"), "audit_bonds", [name])


def downgrade() -> None:
    """Go back."""
    op.drop_table("audit_bonds")
