"""Does a tab list nouns, the verbs of a noun and the options of a verb, though nouns are lazy?"""

import os
from unittest.mock import patch

import pytest
from typer.testing import CliRunner

from tallystick.cli.main import app


def completed(line: str) -> set[str]:
    """What bash offers after `line`."""
    words = line.split(" ")
    asked = {
        "_TALLYSTICK_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    with patch.dict(os.environ, asked):
        done = CliRunner().invoke(app, [], prog_name="tallystick")
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("tallystick ", {"job", "provider", "wallet", "schema"}),
        ("tallystick pr", {"provider"}),
        ("tallystick job ", {"submit", "watch", "download"}),
        ("tallystick job show --", {"--market", "--output", "--quiet"}),
        ("tallystick offers list -o ", {"table", "json", "csv"}),
    ],
)
def test_completion__after_a_line__offers_what_fits(line: str, offered: set[str]) -> None:
    assert offered <= completed(line)
