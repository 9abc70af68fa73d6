"""`tallystick demo`: one job from offer to audit on this machine, and a report."""

import asyncio
import signal
import tempfile
from pathlib import Path
from typing import Annotated

import typer


def app(
    keep: Annotated[bool, typer.Option("--keep", help="Leave it running and print URLs.")] = False,
    home: Annotated[
        Path | None, typer.Option("--home", help="Data folder; a temporary one if absent.")
    ] = None,
) -> None:
    """Run one job from offer to audit on this machine, and report.

    Ctrl-C stops everything and exits with 130; the same command with the same --home goes on.
    """
    from tallystick.demo.story import demo  # needs all extras, and takes seconds to import

    def say(line: str) -> None:
        typer.echo(line)

    async def run(folder: Path) -> int:
        task = asyncio.ensure_future(demo(folder, keep=keep, say=say))
        asked = asyncio.Event()

        def stop() -> None:  # once: a second signal must not interrupt the stopping
            if not asked.is_set():
                say("stopping")
                asked.set()
                task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop)
        try:
            return await task
        except asyncio.CancelledError:
            say("stopped cleanly")
            return 130

    if home is not None:
        raise typer.Exit(asyncio.run(run(home.resolve())))
    with tempfile.TemporaryDirectory(prefix="tallystick-demo-") as folder:
        raise typer.Exit(asyncio.run(run(Path(folder))))
