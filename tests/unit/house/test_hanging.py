"""Does a run that hangs end, with the names of its tests, stacks, and without what it started?"""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.hanging import HANGS

HANGING = """
import signal, subprocess, time

def test_hangs():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])  # as C code that never returns
    subprocess.Popen(["sleep", "3600"], start_new_session=True)
    time.sleep(3600)
"""


@pytest.mark.nightly  # most of a minute, in which it waits
@pytest.mark.processes
def test_run__no_test_finishes__ends_with_names_stacks_and_no_process_left(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_it.py").write_text(HANGING)
    (tmp_path / "pytest.ini").write_text("[pytest]")
    words = (sys.executable, "-m", "pytest", "-n", "2", "-p", "tests.hanging")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}

    done = subprocess.run(
        (*words, "--hang-limit", "20", "-p", "no:cacheprovider", str(tmp_path)),
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert done.returncode == HANGS
    assert "no test finished for 20 s" in done.stderr
    assert "test_it.py::test_hangs for" in done.stderr and "in test_hangs" in done.stderr
    ended = [line.split() for line in done.stderr.splitlines() if line.startswith("ends ")]
    assert "sleep" in [words[2] for words in ended]
    left = [int(words[1]) for words in ended if psutil.pid_exists(int(words[1]))]
    assert psutil.wait_procs(map(psutil.Process, left), timeout=30)[1] == []
