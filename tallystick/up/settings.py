"""What `up` is told by its environment. Nothing below the entry points reads it.

Each of the three server addresses, when set, is used as it is and no server is started for it.
"""

from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


def _default_home() -> Path:
    return Path.home() / ".tallystick"


class UpSettings(BaseSettings):
    """`TALLYSTICK_*` variables. A wrong value stops `up` before it starts anything."""

    model_config = SettingsConfigDict(env_prefix="TALLYSTICK_", frozen=True)

    home: Path = Field(default_factory=_default_home)
    """The data folder."""
    database_url: SecretStr | None = None
    """PostgreSQL, `postgresql://user:password@host:port/name`."""
    redis_url: SecretStr | None = None
    """Redis >= 6.2 or Valkey, `redis://:password@host:port/0`."""
    rpc_url: SecretStr | None = None
    """An Ethereum JSON-RPC endpoint; needs `contracts` as well."""
    contracts: Path | None = None
    """The deployment to use: what `tallystick deploy` wrote."""
    anvil: Path | None = None
    """The anvil program to run, instead of npm's."""
    min_free_bytes: Annotated[int, Field(ge=0)] = 512 * 2**20
    """`up` does not start with less free disk, and stops cleanly at a quarter of it."""
