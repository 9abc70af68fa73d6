"""Does the planned memory cover what a real stage takes, without asking for much more?"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.numerics.peak_memory import cases, name_of

ROOT = Path(__file__).parents[2]
BELOW, ABOVE = 0.06, 0.4
"""The plan may be 6 % short (a loaded machine took 4.1 % more than was planned, once), and ask for
40 % more than was taken."""


@pytest.mark.nightly  # real stages at their peak, each in a fork with torch
@pytest.mark.skipif(sys.platform != "linux", reason="peak sizes are read from /proc")
def test_peer_memory__real_stages_at_their_fullest__are_covered_and_not_far_below() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.numerics.peak_memory"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    measured = [json.loads(line) for line in done.stdout.splitlines()]
    ratios = {shape: planned / taken for shape, taken, planned in measured}
    assert ratios.keys() == {
        name_of(shape, audits=audits, how=how) for shape, audits, how in cases()
    }
    assert {s: r for s, r in ratios.items() if not 1 - BELOW <= r <= 1 + ABOVE} == {}
