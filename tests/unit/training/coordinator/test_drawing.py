"""When is an auditor late by the coordinator's clock?"""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from contracts.governance.checking import Late
from contracts.terms.auditors import AuditorList
from contracts.terms.beacons import Beacons
from contracts.terms.ids import StageIndex, StepNumber
from contracts.terms.moments import UnixMillis
from tests.support.dockets import CheckedJob, peer
from training.coordinator.blobs import Blobs
from training.coordinator.drawing import Drawing
from training.coordinator.journal import JobJournal

JOB = CheckedJob()
GRACE = JOB.spec.rules.commit_timeout
WORK = JOB.commit("ann", units=5)
LATE = Late(peer("bob"), StageIndex(0), WORK.digest(), 0, StepNumber(1))
QUICK = 10**12  # units per 1e6 seconds


class Waiting:
    """A search of the auditor that goes on, or not."""

    longest_excuse = 3 * GRACE
    waits = False
    goes_on = False

    def excuses(self, _late: Late) -> bool:
        """See `Blobs.excuses`."""
        return self.goes_on

    def forget_others(self, _awaited: object) -> None:
        """See `Blobs.forget_others`."""


async def missed_at(
    looks: Sequence[int],
    *,
    excused: Sequence[int] = (),
    rates: Sequence[int] = (QUICK,),
    members: Sequence[str] = ("bob", "cem", "dan"),
) -> int | None:
    """The first of these moments at which the report is called late."""
    said: list[object] = []
    now, finding = [0], Waiting()
    known = {
        peer(n): SimpleNamespace(group=0, rate=r) for n, r in zip(members, rates, strict=False)
    }
    state = SimpleNamespace(round=StepNumber(9), members=known, is_idle=False, unsealed=())
    state.terms = SimpleNamespace(is_checked=True)
    checking = SimpleNamespace(awaited=lambda: (LATE,), undrawn=())
    book = SimpleNamespace(
        state=state,
        record_of_job=SimpleNamespace(
            spec=JOB.spec, checking=checking, outside=AuditorList(auditors=())
        ),
        sealed_work=SimpleNamespace(audited=lambda _subject: SimpleNamespace(claim=WORK)),
        unsealed=lambda: (),
        check=lambda _at, notices: said.extend(notices),
    )
    left = list(looks)

    async def next_look(_seconds: float) -> None:
        if said or not left:
            raise asyncio.CancelledError
        now[0] = left.pop(0)
        finding.goes_on = now[0] in excused

    drawing = Drawing(
        cast(JobJournal, book),
        cast(Beacons, None),
        cast(Blobs, finding),
        clock=lambda: UnixMillis(now[0]),
        tell=lambda event, **fields: None,
        pause=cast(Any, next_look),
    )
    with pytest.raises(asyncio.CancelledError):
        await drawing.run()
    return now[0] if said else None


async def test_drawing__nothing_came__is_late_after_the_time_for_a_commit() -> None:
    assert await missed_at([1, GRACE - 1, GRACE, GRACE + 1]) == GRACE


async def test_drawing__auditor_has_left__is_late_at_once() -> None:
    assert await missed_at([1, GRACE], members=("cem",)) == 0


async def test_drawing__auditor_waits_for_us__its_time_stands_still() -> None:
    looks = [GRACE - 1, GRACE, 2 * GRACE, 2 * GRACE + 1]

    assert await missed_at(looks, excused=[GRACE, 2 * GRACE]) == 2 * GRACE + 1


async def test_drawing__auditor_waits_for_ever__is_late_in_the_end() -> None:
    looks = range(GRACE, 10 * GRACE, GRACE)

    assert await missed_at(looks, excused=looks) == 4 * GRACE


async def test_drawing__a_long_replay__has_four_times_as_long_as_it_takes() -> None:
    slow = 10**9 // GRACE  # a unit takes as long as a commit
    looks = range(GRACE, 40 * GRACE, GRACE)

    assert await missed_at(looks, rates=(slow, QUICK)) == 4 * 5 * GRACE
    assert await missed_at(looks, rates=(slow, QUICK, QUICK)) == GRACE
