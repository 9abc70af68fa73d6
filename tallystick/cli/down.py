"""`tallystick down`: stop what `tallystick up` runs in a data folder."""

import signal
from pathlib import Path
from typing import Annotated

import typer

from contracts.terms.errors import DeadlineExceeded, Forbidden, NotFound
from tallystick.up.data_folder import DataFolder
from tallystick.up.foreground import running_up, wait_ended
from tallystick.up.processes import is_alive, send
from tallystick.up.settings import read_settings


def command(
    home: Annotated[
        Path | None,
        typer.Option(help="Data folder. Default: TALLYSTICK_HOME, else ~/.tallystick."),
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait for a clean stop.", min=0, max=86_400)
    ] = 60.0,
) -> None:
    """Stop the services of a market on this machine, and wait until they have stopped."""
    folder = DataFolder(read_settings(home).home.absolute())
    if not folder.home.is_dir():
        raise NotFound(f"{folder.home} is no folder; name the one that `up` uses with --home")
    identity = running_up(folder)
    if identity is None:
        typer.echo(f"nothing runs in {folder.home}")
        return
    if not send(identity, signal.SIGTERM) and is_alive(identity):
        raise Forbidden(f"pid {identity.pid} runs in {folder.home} and belongs to another user")
    if not wait_ended(identity, within=timeout):
        raise DeadlineExceeded(
            f"pid {identity.pid} still runs after {timeout:.0f} s; "
            "`tallystick down` again makes it kill what is slow to stop"
        )
    typer.echo(f"stopped what ran in {folder.home} (pid {identity.pid})")


app = command
