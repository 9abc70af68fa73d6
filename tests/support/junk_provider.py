"""`tallystick provider start` with peers that answer junk: `python -m tests.support.junk_provider`.

Takes the options of `provider start`. TALLYSTICK_TEST_LIES: they also lie when they are measured.
"""

import os
import sys
from dataclasses import dataclass
from unittest.mock import patch

import typer

from tallystick.cli import provider
from tallystick.provider import agent


@dataclass
class JunkAgent(agent.Agent):
    """An agent in all but what it starts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        lies = ("--lies",) if "TALLYSTICK_TEST_LIES" in os.environ else ()
        self.peer_argv = (sys.executable, "-m", "tests.support.junk_peer", *lies)


if __name__ == "__main__":
    with patch.object(agent, "Agent", JunkAgent):
        typer.run(provider.start)
