"""What a host is told by its environment."""

from pathlib import Path

from pydantic import SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class HostSettings(BaseSettings):
    """`TALLYSTICK_*` variables; `up` sets them."""

    model_config = SettingsConfigDict(env_prefix="TALLYSTICK_", frozen=True, extra="ignore")

    api_url: str
    keys: Path
    """Folder with `coordinators/` and, unless it is given, `host-token`."""
    jobs: Path
    """One folder a hosted job."""
    host_token: SecretStr = SecretStr("")
    host_name: str = "local"
    listen: str = "127.0.0.1:0"
    """Where coordinators listen; port 0 is a free one."""
