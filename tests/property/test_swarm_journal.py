"""Replay of the coordinator's journal is its state, at every point of a life with kills.

The life is a real one: a swarm of two peers in one event loop, with the coordinator and a peer
killed on the way. Its journal is fed, event by event, to a second coordinator's book: that one has
to write the same bytes, and a book that is opened on them has to know the same.
"""

import asyncio
from pathlib import Path

import pytest

from contracts.terms.history import Kept, Leaves, decode_kept
from contracts.terms.messages import GradCommit, LeaseAccept
from contracts.terms.signatures import Signed
from tests.support.history import DOMAIN
from tests.support.swarm_job import COORDINATOR, MemorySwarm, Papers, make_papers
from training.coordinator import book as book_module
from training.coordinator.book import REPORT, Book, Signer
from training.journal import Journal, Row
from training.swarm.events import Event, SealStored
from training.swarm.journaled import decode_event
from training.telling import tell_nobody

OF_PEERS = (LeaseAccept, GradCommit)
Life = list[tuple[Event, list[Kept]]]


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> MemorySwarm:
    """A job that has ended."""

    async def run() -> MemorySwarm:
        papers = make_papers("ann", "bob", steps=3, units_per_step=4, chunks=2)
        swarm = MemorySwarm(papers, tmp_path_factory.mktemp("life"))
        swarm.deadly = {
            (COORDINATOR, "grad_commit_stored", 2): COORDINATOR,
            (COORDINATOR, "average_set_stored", 3): "bob",
        }
        await swarm.run()
        return swarm

    return asyncio.run(run())


def journal_of(swarm: MemorySwarm) -> list[Row]:
    with Journal(swarm.folder / COORDINATOR / "journal.sqlite") as journal:
        return [Row(row.kind, row.data) for row in journal.rows()]


def life_of(rows: list[Row]) -> Life:
    """Events with the messages of peers that came with them; seals follow by themselves."""
    life: Life = []
    for row in rows:
        if row.kind == "event":
            life.append((decode_event(row.data), []))
        elif row.kind == "kept" and life:
            item = decode_kept(row.data)
            is_said = isinstance(item, Signed) and isinstance(item.message, OF_PEERS)
            if isinstance(item, Leaves) or is_said:
                life[-1][1].append(item)
    return [(event, kept) for event, kept in life if not isinstance(event, SealStored)]


def open_book(path: Path, papers: Papers) -> Book:
    signer = Signer(papers.coordinator, papers.session, DOMAIN)
    book: Book = book_module.Book(Journal(path), papers.spec, papers.opening, signer, tell_nobody)
    return book


def check_replay(swarm: MemorySwarm, folder: Path) -> None:
    """Feed the life to a book that is opened again after every event."""
    rows = journal_of(swarm)
    book = open_book(folder / "journal.sqlite", swarm.papers)
    for event, kept in life_of(rows):
        assert book.record(event, *kept)
        book.journal.close()
        again = open_book(folder / "journal.sqlite", swarm.papers)
        assert again.state == book.state
        assert again.history == book.history
        book = again
    own = [Row(row.kind, row.data) for row in book.journal.rows()]
    # A validation is reported by a row of its own, which is for people and decides nothing.
    assert [row for row in own if row.kind != REPORT] == [row for row in rows if row.kind != REPORT]
    book.journal.close()


def test_journal__replay_after_every_event__is_the_state(
    swarm: MemorySwarm, tmp_path: Path
) -> None:
    """Catches: a transaction without its event, or without what the coordinator signed in it."""
    check_replay(swarm, tmp_path)
