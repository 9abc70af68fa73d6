"""Which version of Tallystick is installed?"""

from importlib.metadata import version

from market.bodies.base import Body
from tallystick.cli.output import shows


class VersionShown(Body):
    """The installed version."""

    version: str


@shows(VersionShown, lines=lambda shown: [shown.version])
def app() -> VersionShown:
    """Print the version.

    Example: tallystick version
    """
    return VersionShown(version=version("tallystick"))
