"""What a host prepares for a job's processes."""

from dataclasses import replace
from pathlib import Path

import pytest

from contracts.keys.store import load_or_create_session
from contracts.terms.auditors import AuditorList
from tallystick.host.folder import (
    JobFileOnHost,
    WishFile,
    announce,
    count_trainers,
    heeded,
    listening,
    load_auditors,
    load_job,
    prepare,
    tell_wish,
    trainer_key,
)
from tests.support.history import DOMAIN, make_spec, make_wallet
from training.coordinator.ports import Wish

TOLD = JobFileOnHost("http://market", "00" * 32, "/keys/wallet.json", "127.0.0.1:0")


@pytest.mark.parametrize(
    ("last", "told", "where"),
    [
        (None, "127.0.0.1:0", "127.0.0.1:0"),
        ("127.0.0.1:4000", "127.0.0.1:0", "127.0.0.1:4000"),
        ("127.0.0.1:4000", "192.168.1.5:0", "192.168.1.5:0"),
    ],
)
def test_listening__started_again__keeps_its_port_unless_the_host_has_another_address(
    last: str | None, told: str, where: str, tmp_path: Path
) -> None:
    if last is not None:
        announce(tmp_path, last)

    assert listening(tmp_path, told) == where


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


def test_prepare__checked_job__keeps_its_list_and_the_block_of_it(tmp_path: Path) -> None:
    listed = AuditorList(auditors=())
    told = replace(TOLD, opening_block=7)
    spec = make_wallet("poster").sign(make_spec(), DOMAIN)

    prepare(tmp_path / "job", told, spec.encoded(), num_trainers=1, auditors=listed.encoded())

    assert load_auditors(tmp_path / "job") == listed
    assert load_job(tmp_path / "job") == (told, spec)


def test_wish__told_by_the_host__is_read_and_answered_across_restarts(tmp_path: Path) -> None:
    wishes = WishFile(tmp_path)
    assert (wishes.newest(), heeded(tmp_path)) == (None, None)

    tell_wish(tmp_path, Wish(3, "paused"))
    wishes.heeded(3)

    assert WishFile(tmp_path).newest() == Wish(3, "paused")
    assert heeded(tmp_path) == 3
