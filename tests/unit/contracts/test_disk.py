"""What not every file system has: done without, or refused by its name."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from contracts.disk import lock_file, sync


@pytest.mark.parametrize(("number", "is_lacking"), [(errno.EINVAL, True), (errno.EIO, False)])
def test_sync__file_system_that_cannot__is_no_failure_but_a_broken_disk_is(
    number: int, is_lacking: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)

    if is_lacking:
        sync(tmp_path)
    else:
        with pytest.raises(OSError, match="Input/output"):
            sync(tmp_path)


def test_lock__file_system_without_locks__names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", fail)

    with (tmp_path / "lock").open("w") as file, pytest.raises(OSError, match="No locks") as found:
        lock_file(file.fileno(), fcntl.LOCK_EX, tmp_path / "lock")
    assert found.value.filename == str(tmp_path / "lock")
