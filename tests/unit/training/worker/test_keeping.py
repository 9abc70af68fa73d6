"""Does what a peer keeps of sealed steps stay within the bound that its agent counted on?"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from contracts.terms.digest import digest
from contracts.terms.ids import ChunkIndex, StepNumber
from tests.support.dockets import audit_spec
from tests.support.history import make_spec
from training.worker.keeping import Keeping
from training.worker.station import Station
from training.worker.store import Store
from training.worker.tensors import Tensors

PART = bytes(1000)
COMMIT = digest("test", b"commit")


def station(folder: Path) -> Station:
    """What `Keeping` asks of one: the spec, and the files."""
    spec = make_spec(audit=audit_spec())
    book = SimpleNamespace(record=SimpleNamespace(spec=spec))
    found: Any = SimpleNamespace(
        book=book, rules=spec.rules, folder=folder, engine=None, store=Store(folder),
        tensors=Tensors(folder, None), audited=Tensors(folder / "audited", None),
    )  # fmt: skip
    return cast(Station, found)


def with_steps(at: Station, *numbers: int) -> None:
    for number in numbers:
        at.store.bind_parts(StepNumber(number), COMMIT, [PART])


@pytest.mark.parametrize(("room", "kept"), [(10**6, (1, 2, 3, 4)), (2500, (3, 4)), (10, ())])
def test_drop__open_draws_hold_more_than_the_bound__the_oldest_steps_go(
    tmp_path: Path, room: int, kept: tuple[int, ...]
) -> None:
    at = station(tmp_path)
    keeping = Keeping(at)
    keeping.most_bytes = room
    with_steps(at, 1, 2, 3, 4)

    stays, crowded = keeping._drop(keeping.retention, StepNumber(4))

    assert stays == kept == tuple(sorted(at.store.steps()))
    assert crowded == [step for step in (1, 2, 3, 4) if step not in kept]


OTHERS = digest("test", b"a commit of a neighbour")


def test_drop__work_of_others_takes_the_room__it_goes_and_our_own_stays(tmp_path: Path) -> None:
    """Else who sums or audits much loses what it is asked for, and with it its pay."""
    at = station(tmp_path)
    keeping = Keeping(at)
    keeping.most_bytes = 4500
    for number in (1, 2, 3, 4):
        at.store.bind_parts(StepNumber(number), COMMIT, [PART])
        at.store.put_part(StepNumber(number), OTHERS, ChunkIndex(0), PART)
    for number in (1, 2, 3):
        folder = tmp_path / "audited" / "tensors" / f"{number:08d}"
        folder.mkdir(parents=True)
        (folder / "of_a_neighbour.bin").write_bytes(PART)

    stays, crowded = keeping._drop(keeping.retention, StepNumber(4))

    assert (stays, crowded) == ((1, 2, 3, 4), [])
    assert not any((tmp_path / "audited").glob("**/*.bin"))
    held = [at.store.part(StepNumber(n), COMMIT, ChunkIndex(0)) for n in (1, 2, 3, 4)]
    assert held == [PART] * 4


def test_drop__some_room_is_short__the_oldest_parts_of_others_go(tmp_path: Path) -> None:
    at = station(tmp_path)
    keeping = Keeping(at)
    keeping.most_bytes = 3500
    for number in (1, 2):
        at.store.bind_parts(StepNumber(number), COMMIT, [PART])
        at.store.put_part(StepNumber(number), OTHERS, ChunkIndex(0), PART)

    stays, crowded = keeping._drop(keeping.retention, StepNumber(2))

    assert (stays, crowded) == ((1, 2), [])
    held = [at.store.has_part(StepNumber(n), OTHERS, ChunkIndex(0)) for n in (1, 2)]
    assert held == [False, True]
