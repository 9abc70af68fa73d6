"""A peer stands back for others: as a process, and as a session where the kernel groups by it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import patience

NICE_NOW = """
import os, sys
from pathlib import Path
from tallystick.provider.machine import stand_back
before = os.getpriority(os.PRIO_PROCESS, 0)
stand_back(int(sys.argv[1]), Path(sys.argv[2]))
print(os.getpriority(os.PRIO_PROCESS, 0) - before)
"""


def niceness(asked: int, group: Path, *, leads: bool) -> int:
    """How much nicer a process is that was told to be so nice."""
    found = subprocess.run(
        [sys.executable, "-c", NICE_NOW, str(asked), str(group)],
        start_new_session=leads, check=True, capture_output=True, text=True, timeout=patience(30),
    )  # fmt: skip
    return int(found.stdout)


@pytest.mark.parametrize(("leads", "of_session"), [(True, "19"), (False, "")])
def test_stand_back__process_and_its_own_session__are_nicer(
    tmp_path: Path, leads: bool, of_session: str
) -> None:
    group = tmp_path / "autogroup"
    group.touch()

    assert niceness(19, group, leads=leads) > 0
    assert group.read_text() == of_session
