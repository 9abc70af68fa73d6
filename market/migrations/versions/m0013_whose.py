"""Idempotency keys and allocated coordinators belong to an account."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def _make_keys(*key: str) -> None:
    text, data, number = sa.Text(), sa.LargeBinary(), sa.BigInteger()
    op.create_table(
        "idempotency_keys",
        *(
            sa.Column(name, data if name == "owner" else text, autoincrement=False, nullable=False)
            for name in key
        ),
        sa.Column("request", data, nullable=False),
        sa.Column("status", number, nullable=False),
        sa.Column("response", data, nullable=False),
        sa.Column("at", number, nullable=False),
        sa.PrimaryKeyConstraint(*key, name=op.f("pk_idempotency_keys")),
    )


def upgrade() -> None:
    """Go to this revision; answers of before are forgotten, nobody knows whose they are."""
    op.drop_table("idempotency_keys")
    _make_keys("route", "owner", "key")
    op.add_column("coordinators", sa.Column("allocated_to", sa.LargeBinary(), nullable=True))
    op.add_column("coordinators", sa.Column("job", sa.LargeBinary(), nullable=True))
    op.create_index(op.f("ix_coordinators_job"), "coordinators", ["job"])


def downgrade() -> None:
    """Go back."""
    op.drop_index(op.f("ix_coordinators_job"), "coordinators")
    op.drop_column("coordinators", "job")
    op.drop_column("coordinators", "allocated_to")
    op.drop_table("idempotency_keys")
    _make_keys("route", "key")
