"""Files that are replaced whole."""

import os
import stat
from pathlib import Path

import pytest

from tallystick.files import BY_UMASK, replace_file


def test_replace_file__replace_fails__leaves_the_old_file_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_file(tmp_path / "f", b"old")

    def fail(*_: object) -> None:
        raise OSError("no")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no"):
        replace_file(tmp_path / "f", b"new")

    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_bytes() == b"old"


@pytest.mark.parametrize("durable", [True, False])
def test_replace_file__of_another_mode__has_the_new_mode_and_bytes(
    tmp_path: Path, durable: bool
) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"old")
    file.chmod(BY_UMASK)

    replace_file(file, b"new", durable=durable)

    assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (b"new", 0o600)
