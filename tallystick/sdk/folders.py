"""Where a person's own files are: one folder, `TALLYSTICK_HOME` or `~/.tallystick`."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class HomeSettings(BaseSettings):
    """`TALLYSTICK_HOME` and others: what every command of a person starts from."""

    model_config = SettingsConfigDict(env_prefix="TALLYSTICK_", frozen=True, extra="ignore")

    home: Path = Field(default_factory=lambda: Path.home() / ".tallystick")
    market: str = "http://127.0.0.1:8420"
    forkserver: Path | None = None
    """Socket of the forkserver that local processes are started from (`tallystick.up`)."""
