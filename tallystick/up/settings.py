"""What `up` is told by its environment. Nothing below the entry points reads it.

Each of the three server addresses, when set, is used as it is and no server is started for it.
"""

from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr

from contracts.settings import ProcessSettings, default_home, settings_of


class UpSettings(ProcessSettings):
    """`TALLYSTICK_*` variables. A wrong value stops `up` before it starts anything."""

    home: Path = Field(default_factory=default_home)
    """The data folder."""
    database_url: SecretStr | None = None
    """PostgreSQL, `postgresql://user:password@host:port/name`."""
    redis_url: SecretStr | None = None
    """Redis >= 6.2 or Valkey, `redis://:password@host:port/0`."""
    rpc_url: SecretStr | None = None
    """An Ethereum JSON-RPC endpoint; needs `contracts` as well."""
    contracts: Path | None = None
    """The deployment to use: what `tallystick deploy` wrote."""
    blobs: str = ""
    """A folder or `s3://bucket/prefix`, instead of `blobs` in the data folder."""
    anvil: Path | None = None
    """The anvil program to run, instead of npm's."""
    chain_parameters: Annotated[dict[str, int], Field(default_factory=dict)]
    """Changes to the numbers that the embedded chain starts with, as JSON."""
    escrow_times: Annotated[dict[str, int], Field(default_factory=dict)]
    """Changes to the times of its escrow (margin, announce, execute, tail), in seconds, as JSON."""
    listen_address: str = ""
    """IPv4 address of this machine under which others reach it; empty: nobody does."""
    min_free_bytes: Annotated[int, Field(ge=0)] = 512 * 2**20
    """`up` does not start with less free disk, and stops cleanly at a quarter of it."""


def read_settings(home: Path | None = None) -> UpSettings:
    """The settings of this process; `home` overrides TALLYSTICK_HOME.

    Raises:
        WrongConfiguration: a variable has a value that it cannot have.
    """
    return settings_of(UpSettings, **({} if home is None else {"home": home}))
