"""Callers: wallets that signed in, and keys that they made."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go to this revision."""
    op.create_table(
        "sign_ins",
        sa.Column("token", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("account", sa.LargeBinary(), nullable=False),
        sa.Column("nonce", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("ended", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("token", name=op.f("pk_sign_ins")),
        sa.UniqueConstraint("nonce", name=op.f("uq_sign_ins_nonce")),
    )
    op.create_index(op.f("ix_sign_ins_expires_at"), "sign_ins", ["expires_at"])
    op.create_table(
        "api_keys",
        sa.Column("key", sa.LargeBinary(), autoincrement=False, nullable=False),
        sa.Column("account", sa.LargeBinary(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("scopes", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("account", "name", name=op.f("uq_api_keys_account_name")),
    )


def downgrade() -> None:
    """Go back."""
    op.drop_table("api_keys")
    op.drop_table("sign_ins")
