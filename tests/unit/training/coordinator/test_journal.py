"""What a coordinator remembers of audits: a report stands in a history once, whatever was sent."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.terms.errors import Equivocation
from contracts.terms.history import encode_kept
from contracts.terms.messages import AuditReport
from contracts.terms.signatures import Signed
from tests.support.checked_history import CheckedMaker, honest
from tests.support.dockets import begin_checked
from training.coordinator.book import Book, Opening, Signer
from training.journal import Journal, Row
from training.telling import tell_nobody


@pytest.fixture(scope="module", autouse=True)
def _made() -> CheckedMaker:
    """Make the history before any test is timed."""
    return honest()


@pytest.fixture
def book(_made: CheckedMaker, tmp_path: Path) -> Iterator[Book]:
    """Of a coordinator that was started again after its last seal."""
    job = _made
    with Journal(tmp_path / "journal") as journal:
        journal.append([Row("kept", encode_kept(item)) for item in job.items])
        opening = job.record.opening
        yield Book(
            journal,
            job.poster.sign(job.spec, job.domain),
            Opening(opening.anchorer, opening.opening_block, job.outside),
            Signer(job.coordinator, job.session, job.domain),
            tell_nobody,
            begin_checked,
        )


def reports() -> list[AuditReport]:
    items = (item.message for item in honest().items if isinstance(item, Signed))
    return [message for message in items if isinstance(message, AuditReport)]


def test_has_recorded__report_of_a_seal_long_ago__is_known(book: Book) -> None:
    assert reports()
    assert all(map(book.has_recorded, reports()))


def test_has_recorded__another_report_on_the_same_draw__is_equivocation(book: Book) -> None:
    other = reports()[0].model_copy(update={"projections": (12345,)})

    with pytest.raises(Equivocation):
        book.has_recorded(other)


def test_has_recorded__another_attempt__is_new(book: Book) -> None:
    assert not book.has_recorded(reports()[0].model_copy(update={"attempt": 5}))
