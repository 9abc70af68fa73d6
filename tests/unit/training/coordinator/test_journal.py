"""What a coordinator remembers of audits, and when members hear of what has changed.

A report stands in a history once, whatever was sent.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.terms.errors import Equivocation
from contracts.terms.history import encode_kept
from contracts.terms.ids import StepNumber
from contracts.terms.moments import UnixMillis
from contracts.terms.work import WorkClaim
from tests.support.checked_history import CheckedMaker, honest
from tests.support.dockets import begin_checked
from tests.support.history import claims_in, make_digest
from tests.support.papers import make_papers
from tests.support.rounds import RULES, Shell, joining
from tests.unit.training.coordinator.journals import open_journal
from training.coordinator.journal import JobJournal, Opening, Signer
from training.coordinator.ports import StepReport
from training.journal import Journal, Row
from training.rounds.events import Disconnected
from training.rounds.state import Commit
from training.strategies.port import RoundNumber
from training.telling import tell_nobody


@pytest.fixture(scope="module", autouse=True)
def _made() -> CheckedMaker:
    """Make the history before any test is timed."""
    return honest()


@pytest.fixture
def journal(_made: CheckedMaker, tmp_path: Path) -> Iterator[JobJournal]:
    """Of a coordinator that was started again after its last seal."""
    job = _made
    with Journal(tmp_path / "journal") as file:
        file.append([Row("kept", encode_kept(item)) for item in job.items])
        opening = job.record.opening
        yield JobJournal(
            file,
            job.poster.sign(job.spec, job.domain),
            Opening(opening.anchorer, opening.opening_block, job.outside),
            Signer(job.coordinator, job.session, job.domain),
            RULES,
            tell_nobody,
            begin_checked,
        )


def reports() -> list[WorkClaim]:
    return claims_in(honest().items, "report")


def test_has_recorded__report_of_a_seal_long_ago__is_known(journal: JobJournal) -> None:
    assert reports()
    assert all(map(journal.has_recorded, reports()))


def test_has_recorded__another_report_on_the_same_draw__is_equivocation(
    journal: JobJournal,
) -> None:
    other = reports()[0].model_copy(update={"leaves": make_digest("other")})

    with pytest.raises(Equivocation):
        journal.has_recorded(other)


def test_has_recorded__another_attempt__is_new(journal: JobJournal) -> None:
    assert not journal.has_recorded(reports()[0].model_copy(update={"attempt": 5}))


def test_exchanged__who_held_shards_is_lost__others_hear_at_once_what_to_hold(
    tmp_path: Path,
) -> None:
    papers = make_papers("ann", "bob", "cem", chunks=3)
    ann, bob, cem = (member.session.peer for member in papers.members.values())
    with Journal(tmp_path / "journal") as file:
        job = open_journal(papers, file)
        shell = Shell(job.state.terms)
        for peer in (ann, bob, cem):
            shell.tell(joining(peer))
        assert shell.state.open is not None
        items = sorted(shell.state.open.issued)
        for number, peer in enumerate((ann, bob, cem)):
            shell.work(peer, *items[number::3])
        shell.claim(ann, bob, cem)
        shell.deliver(ann, bob)
        job.state = shell.state
        version = job.exchanged.version

        job.record(Disconnected(bob, shell.now))

        assert isinstance(job.state.phase, Commit) and job.state.phase.lacking[ann]
        assert job.exchanged.version > version


@pytest.mark.parametrize("loss", [-1, 2**53])
def test_note_validation__loss_that_no_message_holds__is_as_if_there_was_none(
    journal: JobJournal, loss: int
) -> None:
    step = StepNumber(journal.record_of_job.step)
    journal.newest_report = StepReport(step, 1, 1, UnixMillis(1))

    journal.note_validation(RoundNumber(step), loss, UnixMillis(2))

    assert journal.newest_report.validation_millionths is None
