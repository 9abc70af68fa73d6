"""`tallystick down`: stop what `tallystick up` runs in a data folder."""

import signal
from typing import Annotated

import typer

from contracts.terms.errors import DeadlineExceeded, Forbidden, NotFound
from market.bodies.base import Body
from tallystick.cli.options import DataHome
from tallystick.cli.output import shows
from tallystick.up.data_folder import DataFolder
from tallystick.up.foreground import running_up, wait_ended
from tallystick.up.processes import Identity, is_alive, send
from tallystick.up.settings import read_settings


class Stopped(Body):
    """What ran in a data folder; without a pid nothing did."""

    data: str
    pid: int | None


def _lines(stopped: Stopped) -> list[str]:
    if stopped.pid is None:
        return [f"nothing runs in {stopped.data}"]
    return [f"stopped what ran in {stopped.data} (pid {stopped.pid})"]


@shows(Stopped, lines=_lines)
def app(
    home: DataHome = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait for a clean stop.", min=0, max=86_400)
    ] = 60.0,
) -> Stopped:
    """Stop the services of a market on this machine, and wait until they have stopped.

    Example: tallystick down --timeout 20
    """
    folder = DataFolder(read_settings(home).home.absolute())
    if not folder.home.is_dir():
        raise NotFound(f"{folder.home} is no folder; name the one that `up` uses with --home")
    identity = running_up(folder)
    if identity is not None:
        _stop(identity, folder, timeout)
    return Stopped(data=str(folder.home), pid=None if identity is None else identity.pid)


def _stop(identity: Identity, folder: DataFolder, timeout: float) -> None:
    if not send(identity, signal.SIGTERM) and is_alive(identity):
        raise Forbidden(f"pid {identity.pid} runs in {folder.home} and belongs to another user")
    if not wait_ended(identity, within=timeout):
        raise DeadlineExceeded(
            f"pid {identity.pid} still runs after {timeout:.0f} s; "
            "`tallystick down` again makes it kill what is slow to stop"
        )
