"""What the data folder accepts, and that its files appear whole."""

import os
from pathlib import Path

import pytest

from contracts.terms.errors import Conflict, Malformed, Refused, UnknownVersion, WrongConfiguration
from tallystick.up import data_folder
from tallystick.up.data_folder import FOLDERS, open_data_folder, rotate, take_lock, write_json


def test_open_data_folder__first_use__makes_private_folders(tmp_path: Path) -> None:
    folder = open_data_folder(tmp_path / "a" / "b")

    assert {path.name for path in folder.home.iterdir()} == {*FOLDERS, "version"}
    assert {path.stat().st_mode & 0o777 for path in folder.home.iterdir()} == {0o700, 0o600}


@pytest.mark.parametrize(
    ("version", "error"), [("2", UnknownVersion), ("one", Malformed), ("-1", Malformed)]
)
def test_open_data_folder__other_version__is_refused_untouched(
    tmp_path: Path, version: str, error: type[Refused]
) -> None:
    (tmp_path / "version").write_text(version)

    with pytest.raises(error):
        open_data_folder(tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["version"]


def test_open_data_folder__path_through_a_file__is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(WrongConfiguration, match="cannot be a data folder"):
        open_data_folder(tmp_path / "file" / "home")


def test_open_data_folder__of_somebody_else__is_refused(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()

    with pytest.raises(Refused, match="not ours"):
        open_data_folder(tmp_path)


def test_take_lock__held__second_is_refused_with_the_pid_and_taken_after_release(
    tmp_path: Path,
) -> None:
    folder = open_data_folder(tmp_path)
    first = take_lock(folder)
    write_json(folder.up, {"pid": 77})

    with pytest.raises(Conflict, match="pid 77") as refused:
        take_lock(folder)
    os.close(first)
    os.close(take_lock(folder))

    assert refused.value.data == {"pid": 77}


def test_rotate__large_log__is_put_aside_and_three_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_folder, "_MAX_LOG_BYTES", 1)
    log = tmp_path / "x.log"
    for number in range(5):
        log.write_text(str(number))
        rotate(log)

    found = {path.name: path.read_text() for path in tmp_path.iterdir()}

    assert found == {"x.log.1": "4", "x.log.2": "3", "x.log.3": "2"}
