"""What peers are told when they come: here, what is refused."""

from pathlib import Path

import pytest

from contracts.terms.errors import Conflict
from tests.support.papers import make_papers
from tests.unit.training.coordinator.journals import handlers_of, open_journal
from training.journal import Journal
from training.transport import calls
from training.transport.wire import Question


async def test_join__state_is_ahead_of_the_newest_seal__is_a_conflict(tmp_path: Path) -> None:
    papers = make_papers("ann")
    lease, key = papers.leases["ann"], papers.members["ann"].session.key
    with Journal(tmp_path / "journal") as file:
        job = open_journal(papers, file)
        handlers = handlers_of(job, tmp_path)
        handlers.roster[key] = lease
        ahead = calls.Join(job=papers.job, address="", bandwidth=1, applied=1)

        with pytest.raises(Conflict, match="never given"):
            await handlers.join(Question(key, ahead, (memoryview(lease.encoded()),)))

        assert job.state.members == {}
