"""`job submit` on a disk that is full: one line, and the same call posts once there is room."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tallystick.cli.main import EXIT_CODES
from tests.integration.bad_input.servers import empty_world, market_in_a_thread
from tests.integration.bad_input.verbs import Said, complaint
from tests.integration.up.test_full_disk import SmallDisk, small_disk
from tests.support.patience import patience
from tests.support.stack import ROOT

JOB = "name: tiny\nrecipe: micro\nbudget: 10\nprice_ceiling: 2000000\ndeadline: 1h\ndata: t.txt\n"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    made = small_disk(tmp_path / "small disk", "64k")
    yield made
    made.holder.kill()
    made.holder.wait()
    if made.holder.stdout:
        made.holder.stdout.close()


def submit(disk: SmallDisk, folder: Path, market: str) -> Said:
    words = (sys.executable, "-m", "tallystick", "job", "submit", str(folder / "job.yaml"))
    done = subprocess.run(
        [*disk.prefix, "env", f"TALLYSTICK_HOME={disk.path / 'home'}", *words, "--market", market],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=patience(60),
    )
    return Said(done.returncode, done.stdout, done.stderr)


@pytest.mark.nightly  # in the gate: tests/integration/up/test_full_disk.py
def test_submit__disk_is_full__says_so_and_posts_once_it_is_not(
    disk: SmallDisk, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "t.txt").write_text("".join(f"line {i} of a text\n" for i in range(300)))
    filler = disk.outside / "filler"
    with market_in_a_thread(empty_world(int(time.time()))) as market:
        with filler.open("wb") as file, pytest.raises(OSError, match="No space"):
            file.write(bytes(2**20))
        full = submit(disk, tmp_path, market)
        filler.unlink()
        again = submit(disk, tmp_path, market)

    assert full.exit_code == EXIT_CODES["refused"]
    assert "No space left on device" in complaint(full)
    assert again.exit_code == EXIT_CODES["no_match"]  # no host here: as far as it can get
    assert "No space" not in complaint(again)
