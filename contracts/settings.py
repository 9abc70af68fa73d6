"""How is a process told what it needs? By variables of its environment, read in one way for all.

A variable that is set to nothing is not set, as `${NAME:-}` leaves it. `~` in a path is the home
folder of the user, as no shell has expanded it. Only entry points read variables.
"""

import os
import pwd
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from contracts.terms.errors import WrongConfiguration

S = TypeVar("S", bound="ProcessSettings")


class ProcessSettings(BaseSettings):
    """`TALLYSTICK_*` variables of one kind of process. A wrong value stops it before it starts."""

    model_config = SettingsConfigDict(
        env_prefix="TALLYSTICK_", env_ignore_empty=True, frozen=True, extra="ignore"
    )

    @field_validator("*")
    @classmethod
    def _expand(cls, value: object) -> object:
        return expanded(value) if isinstance(value, Path) else value


def settings_of(cls: type[S], **given: Any) -> S:
    """The settings of this process; what is `given` goes before its variables.

    Raises:
        WrongConfiguration: a variable is missing or has a value that it cannot have.
    """
    try:
        return cls(**given)
    except SettingsError as error:  # a variable that has to be JSON
        raise WrongConfiguration(str(error)) from None
    except ValidationError as error:
        prefix = cls.model_config.get("env_prefix", "")
        problems = (
            f"{prefix}{'_'.join(map(str, problem['loc'])).upper()}: {problem['msg']}"
            for problem in error.errors(include_input=False)  # an input may be a password
        )
        raise WrongConfiguration("; ".join(problems)) from None


def expanded(path: Path) -> Path:
    """`path` with the home folder for `~`; a `~name` that names no user stays, as in a shell.

    Raises:
        WrongConfiguration: this user has no home folder.
    """
    first, *rest = path.parts or ("",)
    if first == "~":
        return home_folder().joinpath(*rest)
    return Path(os.path.expanduser(path))


def home_folder() -> Path:
    """The home folder of the user.

    Raises:
        WrongConfiguration: there is none, as for a container's user whom nobody named.
    """
    if named := os.environ.get("HOME"):
        return Path(named)
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        raise WrongConfiguration(
            f"no home folder: HOME is not set, and user id {os.getuid()} has no entry in "
            "/etc/passwd; set HOME, or TALLYSTICK_HOME to a folder for Tallystick's files"
        ) from None


def default_home() -> Path:
    """The folder of Tallystick's files where nothing names another; raises as `home_folder`."""
    return home_folder() / ".tallystick"
