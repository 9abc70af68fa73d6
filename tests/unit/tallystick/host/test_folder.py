"""What a host prepares for a job's processes."""

from pathlib import Path

from contracts.keys.store import load_or_create_session
from tallystick.host.folder import JobFileOnHost, count_trainers, prepare, trainer_key

TOLD = JobFileOnHost("http://market", "00" * 32, "/keys/wallet.json", "127.0.0.1:0")


def keys(folder: Path) -> list[bytes]:
    return [
        load_or_create_session(trainer_key(folder, number)).key
        for number in range(count_trainers(folder))
    ]


def test_prepare__again_with_another_number__trainers_stay_those_of_the_opening(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "job"
    prepare(folder, TOLD, b"spec", num_trainers=2)
    before = keys(folder)

    prepare(folder, TOLD, b"spec", num_trainers=3)

    assert keys(folder) == before
    assert len(set(before)) == 2
    assert {path.stat().st_mode & 0o777 for path in folder.glob("*.key")} == {0o600}


def test_prepare__killed_before_the_last_key__makes_the_rest(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    prepare(folder, TOLD, b"spec", num_trainers=2)
    first = keys(folder)[0]
    for name in ("trainer-1.key", "coordinator.key"):
        (folder / name).unlink()

    prepare(folder, TOLD, b"spec", num_trainers=2)

    assert keys(folder)[0] == first
    assert count_trainers(folder) == 2
