"""Does what a peer keeps of sealed rounds stay within the bound that its agent counted on?"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from contracts.terms.errors import Malformed, NotFound
from contracts.terms.ids import StageIndex, StepNumber
from tests.support.dockets import audit_spec
from tests.support.fakes.counting import CountingState
from tests.support.history import make_digest, make_spec
from training.worker.engine import Engine
from training.worker.files import RANGE, ServedFiles
from training.worker.keeping import Keeping
from training.worker.station import Station
from training.worker.store import Kind, Store

PART = bytes(1000)
OTHERS: tuple[Kind, ...] = ("lent", "audited")


def station(folder: Path) -> Station:
    """What `Keeping` asks of one: the spec, and the files."""
    spec = make_spec(audit=audit_spec())
    book = SimpleNamespace(record=SimpleNamespace(spec=spec), updated=lambda round: round)
    found: Any = SimpleNamespace(
        book=book, rules=spec.rules, folder=folder, engine=None, store=Store(folder),
        group=StageIndex(0), folder_of=lambda group: folder / "groups" / f"{group:02d}",
    )  # fmt: skip
    return cast(Station, found)


def with_rounds(at: Station, *numbers: int) -> None:
    for number in numbers:
        at.store.put("shards", StepNumber(number), make_digest("own", number), PART)


@pytest.mark.parametrize(("room", "kept"), [(10**6, (1, 2, 3, 4)), (2500, (3, 4)), (10, ())])
def test_drop__open_draws_hold_more_than_the_bound__the_oldest_rounds_go(
    tmp_path: Path, room: int, kept: tuple[int, ...]
) -> None:
    at = station(tmp_path)
    keeping = Keeping(at)
    keeping.most_bytes = room
    with_rounds(at, 1, 2, 3, 4)

    stays, crowded = keeping._drop(keeping.retention, StepNumber(4))

    assert stays == kept == tuple(sorted(at.store.rounds()))
    assert crowded == [number for number in (1, 2, 3, 4) if number not in kept]


def test_drop__work_of_others_takes_the_room__it_goes_and_our_own_stays(tmp_path: Path) -> None:
    """Else who reduces or audits much loses what it is asked for, and with it its pay."""
    at = station(tmp_path)
    keeping = Keeping(at)
    keeping.most_bytes = 4500
    with_rounds(at, 1, 2, 3, 4)
    for number in (1, 2, 3, 4):
        for kind in OTHERS:
            at.store.put(kind, StepNumber(number), make_digest(kind, number), PART)

    stays, crowded = keeping._drop(keeping.retention, StepNumber(4))

    assert (stays, crowded) == ((1, 2, 3, 4), [])
    assert {path.parts[-3] for path in tmp_path.rglob("*.bin")} == {"shards"}


def test_drop__some_room_is_short__the_oldest_shards_of_others_go(tmp_path: Path) -> None:
    at = station(tmp_path)
    keeping = Keeping(at)
    keeping.most_bytes = 3500
    with_rounds(at, 1, 2)
    for number in (1, 2):
        at.store.put("lent", StepNumber(number), make_digest("lent", number), PART)

    stays, crowded = keeping._drop(keeping.retention, StepNumber(2))

    assert (stays, crowded) == ((1, 2), [])
    assert [at.store.has(make_digest("lent", number)) for number in (1, 2)] == [False, True]


def test_drop__moved_to_another_group__weights_of_the_old_one_stay_while_its_work_does(
    tmp_path: Path,
) -> None:
    at = station(tmp_path)
    keeping = Keeping(at)
    for group, number in ((1, 1), (1, 3), (0, 4)):
        file = keeping.file(StageIndex(group), StepNumber(number))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(PART)
    with_rounds(at, 2)

    keeping._drop(keeping.retention.narrowed(StepNumber(4), []), StepNumber(4))

    here = {(path.parts[-3], path.stem) for path in tmp_path.rglob("*.weights")}
    assert here == {("01", "00000001"), ("00", "00000004")}


async def test_view_and_range__of_weights_that_are_here__and_nothing_else(tmp_path: Path) -> None:
    at: Any = station(tmp_path)
    at.engine, at.state, at.applied = Engine(), CountingState(StageIndex(0)), StepNumber(2)
    at.roots, at.served = at.state.roots(), ServedFiles(at.engine)
    keeping = Keeping(at)
    await keeping.keep_weights()
    file = keeping.file(at.group, at.applied)

    view = await keeping.view(at.group, at.applied)
    data = await at.served.range(file, 0, view.num_bytes)

    assert view.num_bytes == len(data) and view.state_root == at.roots.state
    for start, end in ((0, view.num_bytes + 1), (5, 5), (0, RANGE + 1)):
        with pytest.raises(Malformed):
            await at.served.range(file, start, end)
    for group, number in ((1, 2), (0, 77)):
        with pytest.raises(NotFound):
            await keeping.view(StageIndex(group), StepNumber(number))
    await at.engine.close()
