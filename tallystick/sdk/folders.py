"""Where a person's own files are: one folder, `TALLYSTICK_HOME` or `~/.tallystick`."""

from pathlib import Path

from pydantic import Field

from contracts.settings import ProcessSettings, default_home
from contracts.terms.errors import WrongConfiguration


class HomeSettings(ProcessSettings):
    """`TALLYSTICK_HOME` and others: what every command of a person starts from."""

    named_home: Path | None = Field(None, validation_alias="TALLYSTICK_HOME")
    market: str = "http://127.0.0.1:8420"
    forkserver: int | None = None
    """Descriptor of the forkserver that local processes are asked of (`tallystick.up`)."""

    @property
    def home(self) -> Path:
        """The folder; raises WrongConfiguration where none is named and the user has no home."""
        return self.named_home or default_home()

    def home_or(self, folder: Path) -> Path:
        """The same, but `folder` where the user has no home."""
        try:
            return self.home
        except WrongConfiguration:
            return folder
