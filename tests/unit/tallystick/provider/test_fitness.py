"""What does `doctor` say of the market's clock, and of the disk that leases take?"""

from pathlib import Path

import pytest

from tallystick.provider.fitness import clock_row, examine_home
from tallystick.provider.folder import PeerFile, save_peer_file


@pytest.mark.parametrize(
    ("ahead", "ok", "found"),
    [
        (300_000, False, "this machine's clock is 300 s ahead of the market's"),
        (-121_000, False, "this machine's clock is 121 s behind the market's"),
        (-3_500, True, "this machine's clock is 3 s behind the market's"),
        (400, True, "equal to the second"),
    ],
)
def test_clock_row__clocks_are_apart__says_how_far_and_what_to_do(
    ahead: int, ok: bool, found: str
) -> None:
    row = clock_row(ahead, "")

    assert (row.ok, row.found) == (ok, found)
    assert row.remedy == ("" if ok else "set the clock (NTP)")


def test_examine_home__folder_of_a_lease_holds_more_than_it_may__is_a_finding(
    tmp_path: Path,
) -> None:
    for name, size in (("aa" * 32, 10), ("bb" * 32, 3 * 2**20)):
        folder = tmp_path / "leases" / name
        folder.mkdir(parents=True)
        save_peer_file(folder, PeerFile("http://market", "1e" * 32, name, 1, 1, 2**20))
        (folder / "chunk").write_bytes(bytes(size))

    rows = list(examine_home(tmp_path))

    assert [(row.check, row.ok) for row in rows[1:]] == [
        ("lease aaaaaaaa", True),
        ("lease bbbbbbbb", False),
    ]
    assert rows[0].check == "provider disk" and rows[0].found.endswith("MB free")
    assert (rows[2].wanted, rows[2].found) == ("1 MB at most", "4 MB")
