"""Does an auditor lose the time of silent holders once, or one after another?"""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from contracts.terms.errors import NotFound, Unavailable
from contracts.terms.ids import ChunkIndex, Digest, StepNumber
from contracts.terms.messages import GradCommit
from tests.support.dockets import CheckedJob, peer
from tests.support.history import make_digest
from training.transport.calls import Held
from training.worker.engine import Engine
from training.worker.patience import Patience
from training.worker.peers import Peers
from verification.auditing.job import AHEAD, Fetcher

COMMIT = CheckedJob().commit("ann")
TENSORS = [(make_digest("tensor", number), [peer("bob")]) for number in range(3 * AHEAD)]


class Silent:
    """Holders that say nothing until they all are given up."""

    def __init__(self) -> None:
        self.asked, self.most, self.given_up = 0, 0, asyncio.Event()

    async def fetch_tensor(self, _held: Held, *_args: object, **_named: object) -> object:
        """See `Peers.fetch_tensor`."""
        self.asked += 1
        self.most = max(self.most, self.asked)
        try:
            await self.given_up.wait()
        finally:
            self.asked -= 1
        raise Unavailable("nobody answers")


class Disk:
    """Has nothing yet."""

    audited = None

    def get(self, _step: StepNumber, _digest: Digest) -> object:
        """See `OnDisk.get`."""
        raise NotFound("not here")


async def at_once(do: Callable[[], Any]) -> Any:
    """See `Engine.run_io`."""
    return do()


async def part_of(_commit: GradCommit, _chunk: ChunkIndex, _patience: Patience) -> bytes:
    """Every part is here."""
    return b""


async def test_ahead__all_holders_are_silent__a_few_are_waited_for_at_once() -> None:
    silent = Silent()
    engine = cast(Engine, SimpleNamespace(run_io=at_once))
    claims = Fetcher(engine, cast(Peers, silent), part_of, cast(Any, Disk))

    taking = asyncio.create_task(claims.ahead(COMMIT, TENSORS))
    while silent.asked < AHEAD:
        await asyncio.sleep(0)
    silent.given_up.set()
    await taking

    assert silent.most == AHEAD
