"""`tallystick doctor`: is this machine fit, and if not, what helps?"""

import json
from pathlib import Path
from typing import Annotated

import typer

from tallystick.up.doctor import Row, as_json, examine
from tallystick.up.foreground import forget_defaults
from tallystick.up.settings import read_settings


def command(
    home: Annotated[
        Path | None,
        typer.Option(help="Data folder. Default: TALLYSTICK_HOME, else ~/.tallystick."),
    ] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the rows as JSON, for programs.")
    ] = False,
) -> None:
    """Check this machine: what is wanted, what was found, how to remedy it."""
    forget_defaults()
    rows = examine(read_settings(home))
    if json_output:
        typer.echo(json.dumps(as_json(rows), indent=1))
    else:
        _print(rows)
    if not all(row.ok for row in rows):
        raise typer.Exit(1)


def _print(rows: list[Row]) -> None:
    widths = [max(len(row.check) for row in rows), max(len(row.wanted) for row in rows)]
    for row in rows:
        mark = "ok  " if row.ok else "FAIL"
        typer.echo(f"{mark}  {row.check:<{widths[0]}}  {row.wanted:<{widths[1]}}  {row.found}")
        if row.remedy:
            typer.echo(f"{'':6}{'':<{widths[0]}}  -> {row.remedy}")


app = command
