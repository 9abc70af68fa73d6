"""What a host prepares for a job's processes."""

from dataclasses import replace
from pathlib import Path

import pytest

from contracts.terms.auditors import AuditorList
from tallystick.host.folder import (
    JobFileOnHost,
    WishFile,
    announce,
    heeded,
    listening,
    load_auditors,
    load_job,
    prepare,
    tell_wish,
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


def test_prepare__checked_job__keeps_its_list_and_the_block_of_it(tmp_path: Path) -> None:
    listed = AuditorList(auditors=())
    told = replace(TOLD, opening_block=7)
    spec = make_wallet("poster").sign(make_spec(), DOMAIN)

    prepare(tmp_path / "job", told, spec.encoded(), auditors=listed.encoded())

    assert load_auditors(tmp_path / "job") == listed
    assert load_job(tmp_path / "job") == (told, spec)


def test_wish__told_by_the_host__is_read_and_answered_across_restarts(tmp_path: Path) -> None:
    wishes = WishFile(tmp_path)
    assert (wishes.newest(), heeded(tmp_path)) == (None, None)

    tell_wish(tmp_path, Wish(3, "paused"))
    wishes.heeded(3)

    assert WishFile(tmp_path).newest() == Wish(3, "paused")
    assert heeded(tmp_path) == 3
