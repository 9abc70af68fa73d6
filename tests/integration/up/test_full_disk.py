"""A disk that is full before, while and after `up` starts: one clear error, nothing lost.

The disk is a small tmpfs in a mount namespace of its own, so no privilege is needed.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from tests.integration.up.running import Up, eventually

MOUNT = 'mount -t tmpfs -o size="$0",mode=700 tmpfs "$1" && echo mounted && exec sleep 120'


@dataclass
class SmallDisk:
    """A tmpfs that only processes started with `prefix` see at `path`."""

    path: Path
    holder: "subprocess.Popen[bytes]"

    @property
    def prefix(self) -> tuple[str, ...]:
        """What enters its namespaces."""
        return ("nsenter", "--preserve-credentials", "-U", "-m", "-t", str(self.holder.pid), "--")

    @property
    def outside(self) -> Path:
        """The same folder, seen from here."""
        return Path(f"/proc/{self.holder.pid}/root{self.path}")


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[SmallDisk]:
    folder.mkdir()
    with subprocess.Popen(
        ["unshare", "-U", "--map-root-user", "-m", "sh", "-c", MOUNT, size, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as holder:
        assert holder.stdout is not None
        if holder.stdout.readline() != b"mounted\n":
            pytest.skip("no user namespaces with mounts here")
        yield SmallDisk(folder, holder)
        holder.kill()


@pytest.fixture
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "small disk", request.param) as made:
        yield made


def start(disk: SmallDisk, min_free_bytes: int) -> Up:
    up = Up(
        disk.path / "home",
        prefix=disk.prefix,
        only="postgres",
        TALLYSTICK_MIN_FREE_BYTES=str(min_free_bytes),
    )
    up.home = disk.outside / "home"
    return up


@pytest.mark.parametrize("disk", ["64m"], indirect=True)
def test_up__less_than_wanted_is_free__is_refused_before_anything_starts(disk: SmallDisk) -> None:
    up = start(disk, 512 * 2**20)

    assert up.wait_ended() == 8
    assert up.said().startswith("error: the disk under") and "is full (6" in up.said()
    assert not (up.home / "postgres" / "data").exists()


@pytest.mark.nightly
@pytest.mark.parametrize("disk", ["20m"], indirect=True)
def test_up__disk_fills_while_the_cluster_is_made__is_one_clear_error(disk: SmallDisk) -> None:
    up = start(disk, 0)

    assert up.wait_ended() == 8
    assert "error: the disk under" in up.said() and "Traceback" not in up.said()
    assert not (up.home / "postgres" / "data").exists()


@pytest.mark.parametrize("disk", ["200m"], indirect=True)
def test_up__disk_fills_while_it_runs__stops_cleanly_and_resumes(disk: SmallDisk) -> None:
    up = start(disk, 40 * 2**20).wait_ready()
    with psycopg.connect(up.variable("DATABASE_URL"), autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 'here' AS said")
    filler = disk.outside / "filler"
    free = os.statvfs(disk.outside)
    filler.write_bytes(bytes(free.f_bavail * free.f_frsize - 5 * 2**20))

    assert up.wait_ended() == 8
    assert "is full" in up.said() and "nothing is lost" in up.said()
    assert up.alive() == []

    filler.unlink()
    again = start(disk, 40 * 2**20).wait_ready()
    with psycopg.connect(again.variable("DATABASE_URL")) as connection:
        assert connection.execute("SELECT said FROM kept").fetchone() == ("here",)
    again.close()
    eventually(lambda: again.alive() == [], within=5, what="all stopped")
