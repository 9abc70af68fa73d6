"""`tallystick up`: start a market's services on this machine and keep them running."""

import asyncio
from typing import Annotated

import typer

from tallystick.cli.options import DataHome
from tallystick.cli.output import answer, notice, shows
from tallystick.up.foreground import Ready, forget_defaults, run_detached, serve
from tallystick.up.ports import checked_address
from tallystick.up.settings import read_settings
from tallystick.up.stack import Services


@shows(Ready, lines=Ready.lines)
def app(
    home: DataHome = None,
    port: Annotated[
        int | None,
        typer.Option(help="Port of the API; 0 takes any free one. Default: the last, else 8420."),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            help="Address of this machine where others of a private network reach API, chain and "
            "jobs. Default: TALLYSTICK_LISTEN_ADDRESS, else nobody does."
        ),
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

    The answer comes when all is ready. Ctrl-C or `tallystick down` stops them in order; the next
    start resumes.

    Example: tallystick up --detach
    """
    settings = read_settings(home)
    if listen is not None:
        settings = settings.model_copy(update={"listen_address": checked_address(listen)})
    names = tuple(filter(None, only.split(",")))
    if detach:
        ready = run_detached(
            settings.home, port=port, only=names, report=notice, listen=settings.listen_address
        )
        if isinstance(ready, int):
            raise typer.Exit(ready)
        answer(ready)
        return
    forget_defaults(settings.listen_address)
    services = Services(settings, api_port=port, only=names, report=notice)
    asyncio.run(serve(services, notice, answer))
