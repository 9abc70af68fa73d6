"""Convictions hold the accounts of all who agreed, as the bounty is whose bundle is executed."""

import sqlalchemy as sa
from alembic import op

from contracts.terms.encoding import decode, encode

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

CONVICTIONS = sa.table(
    "convictions",
    sa.column("job", sa.LargeBinary()),
    sa.column("subject", sa.LargeBinary()),
    sa.column("challenger", sa.LargeBinary()),
    sa.column("auditors", sa.LargeBinary()),
    sa.column("accounts", sa.LargeBinary()),
)


def upgrade() -> None:
    """Go to this revision; a conviction from before keeps the one challenger that it had."""
    op.add_column("convictions", sa.Column("accounts", sa.LargeBinary(), nullable=True))
    for row in op.get_bind().execute(sa.select(CONVICTIONS)).all():
        auditors = decode(bytes(row.auditors), max_bytes=2**30)
        assert isinstance(auditors, list)
        _write(row, accounts=encode([bytes(row.challenger)] * len(auditors)))
    op.alter_column("convictions", "accounts", nullable=False)
    op.drop_column("convictions", "challenger")


def downgrade() -> None:
    """Go back."""
    op.add_column("convictions", sa.Column("challenger", sa.LargeBinary(), nullable=True))
    for row in op.get_bind().execute(sa.select(CONVICTIONS)).all():
        accounts = decode(bytes(row.accounts), max_bytes=2**30)
        assert isinstance(accounts, list)
        _write(row, challenger=accounts[0])
    op.alter_column("convictions", "challenger", nullable=False)
    op.drop_column("convictions", "accounts")


def _write(row: sa.Row[tuple[bytes, ...]], **values: object) -> None:
    here = (CONVICTIONS.c.job == row.job) & (CONVICTIONS.c.subject == row.subject)
    op.execute(sa.update(CONVICTIONS).where(here).values(**values))
