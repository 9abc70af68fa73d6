"""`tallystick up`: start a market's services on this machine and keep them running."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from tallystick.up.foreground import forget_defaults, run_detached, serve
from tallystick.up.settings import read_settings
from tallystick.up.stack import Services


def command(
    home: Annotated[
        Path | None,
        typer.Option(help="Data folder. Default: TALLYSTICK_HOME, else ~/.tallystick."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(help="Port of the API; 0 takes any free one. Default: the last, else 8420."),
    ] = None,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach/--foreground", help="Return when all is ready, and leave it running."
        ),
    ] = False,
    only: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Start the services of a market on this machine, and keep them running.

    Ctrl-C or `tallystick down` stops them in order; the next start resumes.
    """
    settings = read_settings(home)
    names = tuple(filter(None, only.split(",")))
    if detach:
        code = run_detached(settings.home, port=port, only=names, report=typer.echo)
        if code is not None:
            raise typer.Exit(code)
        return
    forget_defaults()
    services = Services(settings, api_port=port, only=names, report=typer.echo)
    asyncio.run(serve(services, typer.echo))


app = command
