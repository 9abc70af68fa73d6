"""What a host is told by its environment."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr
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
    trainers: Annotated[int, Field(ge=0, le=16)] = 0
    """Trainers of a job; 0: two where it has several stages, else one."""
    forkserver: Path | None = None
    """Socket of the forkserver that a job's processes are started from; None: they are executed."""
