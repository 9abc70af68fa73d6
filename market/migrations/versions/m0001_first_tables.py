"""The first tables: what `market.service.rows` says.

Made from the rows until the first release. Whoever releases freezes it, with `alembic revision
--autogenerate`, so that a later change of a row is a migration of its own.
"""

from alembic import op

from market.adapters.tables import METADATA

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go to this revision."""
    METADATA.create_all(op.get_bind(), checkfirst=False)
