"""A coordinator's journal of a job whose papers a test has."""

from contracts.governance.checking import Begin, unread
from contracts.terms.messages import Message
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import Signed
from tests.support.history import DOMAIN
from tests.support.papers import Papers
from tests.support.rounds import RULES
from training.coordinator.journal import JobJournal, Signer
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
    job.record(joined, Signed[Message](lease.message, lease.signature))
