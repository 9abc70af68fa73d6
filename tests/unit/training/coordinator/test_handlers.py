"""What peers are told when they come: here, what is refused."""

from pathlib import Path

import pytest

from contracts.terms.errors import Conflict
from contracts.terms.moments import UnixMillis
from tests.support.swarm_job import make_papers
from tests.unit.training.coordinator.books import open_book
from training.coordinator.answers import Answers
from training.coordinator.items import Items
from training.coordinator.measuring import Measuring
from training.journal import Journal
from training.telling import tell_nobody
from training.transport import calls


async def test_join__state_is_ahead_of_the_newest_seal__is_a_conflict(tmp_path: Path) -> None:
    papers = make_papers("ann")
    lease, key = papers.leases["ann"], papers.members["ann"].session.key
    with Journal(tmp_path / "journal") as journal:
        book = open_book(papers, journal)
        clock, why_idle = (lambda: UnixMillis(1000)), (lambda _account: None)
        answers = Answers(
            book,
            dict,
            Measuring(papers.job),
            Items(book, clock=clock, why_idle=why_idle, tell=tell_nobody),
            clock=clock,
            welcome=lambda _peer: None,
            why_idle=why_idle,
        )
        answers.roster[key] = lease
        ahead = calls.Join(job=papers.job, address="", bandwidth=1, applied=1, held=())

        with pytest.raises(Conflict, match="never given"):
            await answers.join(key, ahead, (memoryview(lease.encoded()),))

        assert book.state.members == {}
