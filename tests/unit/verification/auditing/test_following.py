"""How an auditor from outside follows a job, and when it stops."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.terms.errors import Conflict, InvalidSeal, InvariantBroken
from contracts.terms.ids import PeerId, StepNumber
from tests.support.auditing import Anchored, Enough, MemoryHost, Stated, followed_job, stop
from tests.support.checked_history import CheckedMaker, honest
from tests.support.history import JobMaker, make_digest, make_session
from training.telling import tell_nobody
from training.worker.engine import Engine
from verification.auditing.host import Host
from verification.auditing.outside import Followed, FollowedJob, run_outside
from verification.auditing.program import Auditing

OUT = make_session("out")


def host_in(folder: Path) -> Callable[[Followed], Host]:
    return lambda followed: MemoryHost(followed, OUT, folder, Engine())


async def outside(job: FollowedJob, folder: Path, peer: PeerId = OUT.peer) -> None:
    await run_outside(job, host_in(folder), Auditing(Stated(), stop), peer, tell_nobody, stop)


async def test_run_outside__job_that_is_over__is_read_to_its_end(tmp_path: Path) -> None:
    maker = honest()
    followed = Followed(followed_job(maker))

    await followed.look(tell_nobody)
    await outside(followed_job(maker), tmp_path)

    assert followed.is_over and followed.record == maker.record
    assert followed.work.said() == {}  # nothing is drawn any more


async def test_run_outside__job_does_not_list_our_key__ends(tmp_path: Path) -> None:
    with pytest.raises(Conflict, match="does not list"):
        await outside(followed_job(honest()), tmp_path, make_session("eve").peer)


async def test_run_outside__history_of_another_job__ends(tmp_path: Path) -> None:
    job = replace(followed_job(honest()), job=JobMaker(name="other").spec.job())

    with pytest.raises(Conflict, match="another job"):
        await outside(job, tmp_path)


async def test_run_outside__audits_have_ended_before_the_job__is_our_own_bug(
    tmp_path: Path,
) -> None:
    class Over(Auditing):
        """Ends at once."""

        async def run(self, host: Host) -> None:
            """See `Auditing.run`."""

    async def look_again(_seconds: float) -> None:
        """Satisfies `Pause`; lets the audits have their turn."""
        await asyncio.sleep(0)

    maker = CheckedMaker()
    maker.next_seal()

    with pytest.raises(InvariantBroken, match="auditing ended"):
        await run_outside(
            followed_job(maker),
            host_in(tmp_path),
            Over(Stated(), stop),
            OUT.peer,
            tell_nobody,
            look_again,
        )


async def test_look__beacon_is_not_here_yet__waits_where_it_is() -> None:
    maker = CheckedMaker()
    maker.next_seal()
    maker.next_seal(works=False)

    class Late(Anchored):
        """The chain as it was before the first beacon."""

        async def beacon_of(self, step: StepNumber) -> None:
            """See `Beacons.beacon_of`."""

    followed = Followed(replace(followed_job(maker), beacons=Late(maker)))
    told = list[str]()

    await followed.look(lambda event, **_: told.append(event))

    assert told == ["waits"] and followed.record.step == 1


async def test_look__beacon_of_another_seal__is_refused() -> None:
    maker = CheckedMaker()
    maker.next_seal()
    maker.next_seal(works=False)
    batch, ((job, step, _),) = maker.market.anchor_chain[0]
    chain = [(batch, ((job, step, make_digest("other")),)), *maker.market.anchor_chain[1:]]
    maker.market.anchor_chain[:] = chain  # type: ignore[index]

    with pytest.raises(InvalidSeal):
        await Followed(followed_job(maker)).look(tell_nobody)


async def test_run_outside__list_of_auditors_is_not_there_yet__waits(tmp_path: Path) -> None:
    maker = CheckedMaker()
    maker.items = maker.items[:2]

    with pytest.raises(Enough):
        await outside(followed_job(maker), tmp_path)
