"""A coordinator's journal of a job whose papers a test has, and what it answers by it."""

from pathlib import Path

from contracts.governance.checking import Begin, unread
from contracts.terms.moments import UnixMillis
from tests.support.history import DOMAIN
from tests.support.papers import Papers
from tests.support.rounds import RULES
from training.coordinator.blobs import Blobs
from training.coordinator.board import Board
from training.coordinator.handlers import Handlers
from training.coordinator.items import ItemRoutes
from training.coordinator.journal import JobJournal, Signer
from training.coordinator.measuring import Measuring
from training.journal import Journal
from training.rounds.events import Joined
from training.strategies.port import RoundNumber
from training.telling import tell_nobody


def open_journal(papers: Papers, file: Journal, begin: Begin = unread) -> JobJournal:
    """The journal as its coordinator opens it, again after a restart."""
    signer = Signer(papers.coordinator, papers.session, DOMAIN)
    return JobJournal(file, papers.spec, papers.opening, signer, RULES, tell_nobody, begin)


def join(job: JobJournal, papers: Papers, name: str, at: UnixMillis) -> None:
    """A worker becomes a member."""
    lease, member = papers.leases[name], papers.members[name]
    joined = Joined(
        peer=member.session.peer,
        group=member.stage,
        address="memory:1",
        applied=RoundNumber(0),
        lease=lease.message.digest(),
        owner=lease.message.account,
        rate=1000,
        bandwidth=1000,
        at=at,
    )
    job.record(joined, lease)


def handlers_of(job: JobJournal, folder: Path) -> Handlers:
    """Answers at one moment, with no session and an empty roster."""
    clock, why_idle = (lambda: UnixMillis(1000)), (lambda _account: None)
    return Handlers(
        job,
        dict,
        Measuring(job.record_of_job.job),
        ItemRoutes(job, clock=clock, why_idle=why_idle, tell=tell_nobody),
        Board(job),
        Blobs(folder, job, {}, dict, clock=clock, tell=tell_nobody),
        targets={},
        clock=clock,
        welcome=lambda _peer: None,
        why_idle=why_idle,
    )
