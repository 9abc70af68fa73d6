"""One worker without a coordinator, and the seals of a job for it.

A test asks it what a coordinator would ask. It reaches nobody.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from contracts.terms.history import Kept
from contracts.terms.messages import Seal
from contracts.terms.signatures import Signed
from tests.support.fakes.memory_transport import MemoryNetwork, MemoryTransport
from tests.support.history import DOMAIN
from tests.support.papers import Papers, make_papers
from tests.support.swarm_job import MemorySwarm, counting
from training.journal import Journal
from training.telling import Tell, tell_nobody
from training.transport import calls
from training.worker.book import WorkerBook
from training.worker.peers import Peers
from training.worker.ports import HONEST
from training.worker.station import Station
from training.worker.store import Store
from training.worker.work import Work


def sealed_job(folder: Path, *names: str, **changed: Any) -> MemorySwarm:
    """A job that has ended, of one peer a stage; all buckets are still there."""
    papers = make_papers(*names, stages=len(names), chunks=2, validate_every=9, **changed)
    swarm = MemorySwarm(papers, folder, in_order=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "drop", lambda *_: None)
        asyncio.run(swarm.run())
    return swarm


def seal_of(swarm: MemorySwarm, step: int) -> list[Kept]:
    """The items under the seal of a step, itself last."""
    items, begin = swarm.items(), 2  # after spec and opening
    for end, item in enumerate(items, start=1):
        if isinstance(item, Signed) and isinstance(item.message, Seal):
            if item.message.step == step:
                return items[begin:end]
            begin = end
    raise AssertionError(f"no seal of step {step}")


@asynccontextmanager
async def worker_of(
    papers: Papers, name: str, folder: Path, tell: Tell = tell_nobody
) -> AsyncIterator[Work]:
    """A worker over `folder`, which has no group yet and knows no members."""
    session, spec, opening = papers.members[name].session, papers.spec, papers.signed_opening()
    transport = MemoryTransport(MemoryNetwork(), session.key, calls.METHODS)
    peers = Peers(transport, spec.message, opening.message, tell)
    with Journal(folder / "journal.sqlite") as journal:
        book = WorkerBook(journal, spec, opening, DOMAIN)
        work = Work(Station(book, folder, peers, session, counting(spec.message), HONEST, tell))
        try:
            yield work
        finally:
            await work.close()
            await transport.close()
