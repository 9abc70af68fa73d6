"""What the data folder accepts, and that its files appear whole."""

from pathlib import Path

import pytest

from contracts.terms.errors import Conflict, Malformed, Refused, UnknownVersion, WrongConfiguration
from tallystick.up import data_folder
from tallystick.up.data_folder import (
    FOLDERS,
    DataFolder,
    Lock,
    load_or_create_secret,
    open_data_folder,
    rotate,
    tail,
    write_json,
)


def test_open_data_folder__first_use__makes_private_folders(tmp_path: Path) -> None:
    folder = open_data_folder(tmp_path / "a" / "b")

    assert {path.name for path in folder.home.iterdir()} == {*FOLDERS, "version"}
    assert {path.stat().st_mode & 0o777 for path in folder.home.iterdir()} == {0o700, 0o600}


def test_open_data_folder__own_folder_again__changes_no_mode(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir(mode=0o755)

    open_data_folder(tmp_path / "home")
    open_data_folder(tmp_path / "home")

    assert (tmp_path / "home").stat().st_mode & 0o777 == 0o755


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


def test_lock__held__second_is_refused_with_the_pid_and_taken_after_release(
    tmp_path: Path,
) -> None:
    folder = open_data_folder(tmp_path)
    first, second = Lock(folder), Lock(folder)
    first.acquire()
    write_json(folder.up, {"pid": 77})

    with pytest.raises(Conflict, match="pid 77") as refused:
        second.acquire()
    first.release()
    second.acquire()
    second.release()

    assert refused.value.data == {"pid": 77}


def test_secret__asked_twice__stays_the_same_and_private(tmp_path: Path) -> None:
    first = load_or_create_secret(tmp_path / "p")

    assert load_or_create_secret(tmp_path / "p") == first and len(first) == 48
    assert (tmp_path / "p").stat().st_mode & 0o777 == 0o600


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


def test_tail__since__shows_only_what_came_later(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("old\nnew\nnewer\n")

    assert tail(log, since=4, num_lines=1) == "newer"
    assert tail(log, since=4) == "new\nnewer"
    assert tail(tmp_path / "none") == ""


def test_paths__are_inside_home() -> None:
    folder = DataFolder(Path("/h"))

    assert folder.log("api") == Path("/h/logs/api.log")
    assert [getattr(folder, name) for name in FOLDERS] == [Path("/h") / name for name in FOLDERS]
