"""`tallystick demo`: one job from offer to audit on this machine, and a report."""

import asyncio
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from market.bodies.base import Body
from tallystick.cli.output import answer, notice, shows
from tallystick.sdk.job_file import Strategy

EXIT_FAILED, EXIT_STOPPED = 1, 130


class Demonstrated(Body):
    """The report of a demo; it passed if there are no problems."""

    passed: bool
    report: tuple[str, ...]
    problems: tuple[str, ...]


def _lines(told: Demonstrated) -> Iterator[str]:
    yield from told.report
    for problem in told.problems:
        yield f"FAILED: {problem}"


@shows(Demonstrated, lines=_lines)
def app(
    keep: Annotated[bool, typer.Option("--keep", help="Leave it running and print URLs.")] = False,
    home: Annotated[
        Path | None, typer.Option("--home", help="Data folder; a temporary one if absent.")
    ] = None,
    strategy: Annotated[
        Strategy,
        typer.Option("--strategy", help="How the job trains: pipeline stages, or local steps."),
    ] = "every_step",
) -> None:
    """Run one job from offer to audit on this machine, and report.

    Ctrl-C stops everything and exits with 130; the same command with the same --home goes on.

    Example: tallystick demo --strategy local
    """
    if home is not None:
        told = asyncio.run(_run(home.resolve(), strategy, keep=keep))
    else:
        with tempfile.TemporaryDirectory(prefix="tallystick-demo-") as folder:
            told = asyncio.run(_run(Path(folder), strategy, keep=keep))
    if told is None:
        raise typer.Exit(EXIT_STOPPED)
    answer(told)
    if not told.passed:
        raise typer.Exit(EXIT_FAILED)


async def _run(folder: Path, strategy: Strategy, *, keep: bool) -> Demonstrated | None:
    """The demo to its end; None: it was stopped."""
    from tallystick.demo.story import demo  # needs all extras, and takes seconds to import

    task = asyncio.ensure_future(demo(folder, strategy, keep=keep, say=notice))
    asked = asyncio.Event()

    def stop() -> None:  # once: a second signal must not interrupt the stopping
        if not asked.is_set():
            notice("stopping")
            asked.set()
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    try:
        ended = await task
    except asyncio.CancelledError:
        notice("stopped cleanly")
        return None
    return Demonstrated(passed=not ended.problems, report=ended.lines, problems=ended.problems)
