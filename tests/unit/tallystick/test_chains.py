"""What a folder keeps of a chain is there on that chain, and on no other."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from contracts.terms.errors import Conflict
from tallystick.chains import ASIDE, hold_for

OLD, NEW = "31337-old", "31337-new"
KEPT = ("*.db*", "leases")


def turn(folder: Path, chain: str) -> list[str]:
    """What is said when a folder is used on a chain, for a moment."""
    said: list[str] = []
    hold_for(folder, chain, KEPT, said.append).close()
    return said


def work(folder: Path, text: str) -> None:
    for name in ("sent.db", "sent.db-wal", "leases/1/key"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def kept(folder: Path) -> list[str]:
    files = (folder / name for name in ("sent.db", "sent.db-wal", "leases/1/key"))
    return [file.read_text() for file in files if file.exists()]


def test_hold_for__folder_of_before_chains_were_noted__is_put_aside(tmp_path: Path) -> None:
    work(tmp_path, "old")

    (said,) = turn(tmp_path, NEW)

    assert kept(tmp_path) == [] and "put aside in chains/unknown" in said
    assert len(kept(tmp_path / ASIDE / "unknown")) == 3


def test_hold_for__many_begin_at_once_on_one_chain__all_have_it(tmp_path: Path) -> None:
    turn(tmp_path, OLD)
    work(tmp_path, "old")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(turn, 8 * [tmp_path], 8 * [NEW]))

    assert kept(tmp_path) == [] and len(kept(tmp_path / ASIDE / OLD)) == 3


@pytest.mark.parametrize("then", [OLD, NEW])
@pytest.mark.parametrize("renames", range(4))
def test_hold_for__killed_in_the_middle__the_next_call_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int, then: str
) -> None:
    turn(tmp_path, OLD)
    work(tmp_path, "old")
    left = iter(range(renames))

    def rename(self: Path, to: Path) -> Path:
        next(left)  # StopIteration: the process ends here
        return before(self, to)

    before = Path.rename
    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", rename)
        if renames < 3:
            with pytest.raises(StopIteration):
                turn(tmp_path, NEW)
        else:
            turn(tmp_path, NEW)
    turn(tmp_path, then)

    assert kept(tmp_path) == (3 * ["old"] if then == OLD else [])
    turn(tmp_path, OLD)
    assert kept(tmp_path) == 3 * ["old"]


def test_hold_for__folder_is_in_use_on_another_chain__nothing_is_moved(tmp_path: Path) -> None:
    with hold_for(tmp_path, OLD, KEPT, print):
        work(tmp_path, "old")
        hold_for(tmp_path, OLD, KEPT, print).close()

        with pytest.raises(Conflict, match="another process uses"):
            turn(tmp_path, NEW)

    assert kept(tmp_path) == 3 * ["old"]
