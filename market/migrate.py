"""Tables of the market, made or brought up to date: `python -m market.migrate`.

Needs TALLYSTICK_DATABASE_URL and nothing else. Safe to repeat and to run twice at once: an advisory
lock lets one in, the second finds nothing to do.
"""

import sys
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from pydantic import SecretStr
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import SQLAlchemyError

from contracts.settings import ProcessSettings, settings_of
from contracts.terms.errors import WrongConfiguration

MIGRATIONS = Path(__file__).parent / "migrations"
LOCK = 0x7A11_0002


class MigrateSettings(ProcessSettings):
    """`TALLYSTICK_*` variables of a migration."""

    database_url: SecretStr


def migrate(url: str) -> str:
    """Bring the database at `url` to the newest revision, which is returned."""
    engine = create_engine(f"postgresql+psycopg://{url.partition('://')[2]}")
    try:
        with engine.connect() as connection:
            connection.execute(text("SELECT pg_advisory_lock(:name)"), {"name": LOCK})
            connection.commit()
            return _upgrade(connection)
    finally:
        engine.dispose()


def _upgrade(connection: Connection) -> str:
    """Run what is missing on an open connection."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    revision = MigrationContext.configure(connection).get_current_revision()
    connection.commit()
    return str(revision)


def main() -> int:
    """Entry point."""
    try:
        settings = settings_of(MigrateSettings)
    except WrongConfiguration as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        revision = migrate(settings.database_url.get_secret_value())
    except SQLAlchemyError as error:
        print(f"error: {type(error).__name__}: {error!s:.400}", file=sys.stderr)
        return 8
    print(f"database is at revision {revision}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
