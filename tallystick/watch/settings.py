"""Whether a process shows its metrics, as its environment says."""

from contracts.settings import ProcessSettings


class WatchSettings(ProcessSettings):
    """`TALLYSTICK_METRICS`: 1 to serve Prometheus metrics on loopback."""

    metrics: bool = False
