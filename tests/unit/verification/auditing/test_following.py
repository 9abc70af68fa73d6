"""How an auditor from outside follows a job, and when it stops."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from contracts.terms.errors import Conflict, InvariantBroken
from contracts.terms.ids import PeerId
from tests.support.auditing import Enough, MemoryHost, Stated, followed_job, stop
from tests.support.checked_history import CheckedMaker, honest
from tests.support.history import make_session
from training.telling import tell_nobody
from training.worker.engine import Engine
from verification.auditing.following import Followed, FollowedJob, run_outside
from verification.auditing.host import Host
from verification.auditing.program import Auditing

OUT = make_session("out")


def host_in(folder: Path) -> Callable[[Followed], Host]:
    return lambda followed: MemoryHost(followed, OUT, folder, Engine())


async def outside(job: FollowedJob, folder: Path, peer: PeerId = OUT.peer) -> None:
    await run_outside(job, host_in(folder), Auditing(Stated(), stop), peer, tell_nobody, stop)


async def test_run_outside__job_does_not_list_our_key__ends(tmp_path: Path) -> None:
    with pytest.raises(Conflict, match="does not list"):
        await outside(followed_job(honest()), tmp_path, make_session("eve").peer)


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


async def test_run_outside__list_of_auditors_is_not_there_yet__waits(tmp_path: Path) -> None:
    maker = CheckedMaker()
    maker.items = maker.items[:2]

    with pytest.raises(Enough):
        await outside(followed_job(maker), tmp_path)
