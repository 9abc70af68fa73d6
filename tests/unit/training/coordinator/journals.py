"""A coordinator's book of a job whose papers a test has."""

from contracts.governance.checking import Begin, unread
from contracts.terms.ids import StepNumber
from contracts.terms.messages import Message
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import Signed
from tests.support.history import DOMAIN
from tests.support.swarm_job import Papers
from training.coordinator.book import Book, Signer
from training.journal import Journal
from training.swarm.events import PeerJoined
from training.telling import tell_nobody


def open_book(papers: Papers, journal: Journal, begin: Begin = unread) -> Book:
    """The book as its coordinator opens it, again after a restart."""
    signer = Signer(papers.coordinator, papers.session, DOMAIN)
    return Book(journal, papers.spec, papers.opening, signer, tell_nobody, begin)


def join(book: Book, papers: Papers, name: str, at: UnixMillis) -> None:
    """A worker becomes a member."""
    lease, member = papers.leases[name], papers.members[name]
    joined = PeerJoined(
        peer=member.session.peer,
        stage=member.stage,
        address="memory:1",
        applied=StepNumber(0),
        lease=lease.message.digest(),
        owner=lease.message.account,
        rate=1000,
        bandwidth=1000,
        at=at,
    )
    book.record(joined, Signed[Message](lease.message, lease.signature))
