"""What peers are told when they come: here, what is refused."""

from pathlib import Path

import pytest

from contracts.terms.errors import Conflict
from contracts.terms.moments import UnixMillis
from tests.support.papers import make_papers
from tests.unit.training.coordinator.journals import open_journal
from training.coordinator.blobs import Blobs
from training.coordinator.board import Board
from training.coordinator.handlers import Handlers
from training.coordinator.items import ItemRoutes
from training.coordinator.measuring import Measuring
from training.journal import Journal
from training.telling import tell_nobody
from training.transport import calls


async def test_join__state_is_ahead_of_the_newest_seal__is_a_conflict(tmp_path: Path) -> None:
    papers = make_papers("ann")
    lease, key = papers.leases["ann"], papers.members["ann"].session.key
    with Journal(tmp_path / "journal") as file:
        job = open_journal(papers, file)
        clock, why_idle = (lambda: UnixMillis(1000)), (lambda _account: None)
        handlers = Handlers(
            job,
            dict,
            Measuring(papers.job),
            ItemRoutes(job, clock=clock, why_idle=why_idle, tell=tell_nobody),
            Board(job),
            Blobs(tmp_path, job, {}, dict, clock=clock, tell=tell_nobody),
            clock=clock,
            welcome=lambda _peer: None,
            why_idle=why_idle,
        )
        handlers.roster[key] = lease
        ahead = calls.Join(job=papers.job, address="", bandwidth=1, applied=1)

        with pytest.raises(Conflict, match="never given"):
            await handlers.join(key, ahead, (memoryview(lease.encoded()),))

        assert job.state.members == {}
