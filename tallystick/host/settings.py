"""What a host is told by its environment."""

from pathlib import Path

from pydantic import SecretStr

from contracts.keys.files import load_token
from contracts.settings import ProcessSettings
from contracts.terms.errors import Refused, WrongConfiguration
from market.bodies.signing import HostCredential


class OperatorSettings(ProcessSettings):
    """Where the operator's token is."""

    keys: Path
    """Folder with `coordinators/` and, at the operator's, `host-token`."""
    host_token: SecretStr = SecretStr("")
    """This host's credential (`tsh_...`), or the operator's token, from which it makes its own;
    empty: the operator's lies in the folder of keys."""


class HostSettings(OperatorSettings):
    """`TALLYSTICK_*` variables; `up` sets them."""

    api_url: str
    jobs: Path
    """One folder a hosted job."""
    host_name: str = "local"
    listen: str = "127.0.0.1:0"
    """Where coordinators listen; port 0 is a free one."""


def credential_of(settings: HostSettings) -> str:
    """What the host shows: what it was given, else what it makes of the operator's token.

    Raises:
        WrongConfiguration: there is neither.
    """
    given = settings.host_token.get_secret_value()
    if given.startswith("tsh_"):
        return given
    return HostCredential(settings.host_name).shown(operator_token(settings))


def operator_token(settings: OperatorSettings) -> str:
    """The operator's token.

    Raises:
        WrongConfiguration: it is not here.
    """
    if given := settings.host_token.get_secret_value():
        return given
    path = settings.keys / "host-token"
    try:
        return load_token(path)
    except Refused as error:
        raise WrongConfiguration(
            "no host credential: the operator makes one by `python -m tallystick.host.credential "
            f"NAME`; set it as TALLYSTICK_HOST_TOKEN, or store the operator's token in {path} "
            f"({error})"
        ) from error
