"""Which version of Tallystick is installed?"""

from importlib.metadata import version

import typer


def app() -> None:
    """Print the version."""
    typer.echo(version("tallystick"))
