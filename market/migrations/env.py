"""Alembic runs this for every command; the connection comes from `market.migrate`."""

from alembic import context

from market.adapters.tables import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA)
with context.begin_transaction():
    context.run_migrations()
