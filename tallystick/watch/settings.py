"""Whether a process shows its metrics, as its environment says."""

from pydantic_settings import BaseSettings, SettingsConfigDict


class WatchSettings(BaseSettings):
    """`TALLYSTICK_METRICS`: 1 to serve Prometheus metrics on loopback."""

    model_config = SettingsConfigDict(env_prefix="TALLYSTICK_", frozen=True, extra="ignore")

    metrics: bool = False
