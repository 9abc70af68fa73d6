"""Two friends in adjacent stages, who agree on an item: what they exchange for it is no number.

Whoever is below sends a y that nobody can compute on and counts the item whatever comes back;
whoever is above makes up its loss and sends a dx of the same sort. All else is as honest work is.
"""

import asyncio

from contracts.terms.items import ItemNumber
from contracts.terms.work import Leaf, leaf_names
from tallystick.gym.around import Around, Computing
from tests.support.swarm_job import MemorySwarm
from training.strategies.port import Compute, Direction, Draft, Items, Source
from training.worker.ports import Behaviour, MakeStrategy
from verification.docket import Docket

LOSS = 5_000_000  # 1e-6 nats per token


def friend(item: ItemNumber, tensor: bytes) -> Behaviour:
    """One of them, of either of two stages: what it sends for the item is this formed tensor."""
    return Computing(lambda make, compute: _Friend(make, compute, item, tensor))


async def until_convicted(swarm: MemorySwarm, *names: str) -> None:
    """Let a job run until all of these are convicted: without them it may stand still."""
    wanted = {swarm.session_of(name).peer for name in names}
    running = asyncio.create_task(swarm.run())
    try:
        done = set[asyncio.Task[None]]()
        while not done:
            done, _ = await asyncio.wait([running], timeout=0.2)
            record = swarm.history().record
            docket = record and record.checking
            if isinstance(docket, Docket) and docket.convicts >= wanted:
                assert docket.convicts == wanted
                return
        raise AssertionError("the job is over, and they are not convicted")
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


class _Friend(Around):
    def __init__(
        self, make: MakeStrategy, compute: Compute, item: ItemNumber, tensor: bytes
    ) -> None:
        super().__init__(make, compute)
        self._item, self._tensor = item, tensor

    async def run(self, item: ItemNumber, direction: Direction, source: Source) -> Leaf | None:
        """See `Strategy.run`."""
        if item != self._item or direction == "evaluate":
            return await self._inner.run(item, direction, source)
        names = leaf_names(self._group, 2, item)
        made = {name: source.put(name, self._tensor) for name in (names.y, names.dx) if name}
        if direction == "forward":
            return None
        rows = await source.get(names.rows)
        made[names.rows] = self.recipe(self._group).forms.digest("rows", rows)
        made |= {name: source.digest(name) for name in (names.x, names.dy) if name}
        return Leaf(
            item=item,
            base_round=self._round,
            given=False,
            tensors=tuple(sorted(made.items())),
            numbers=() if names.y else (LOSS,),
        )

    def commit(self, items: Items) -> Draft:
        """See `Strategy.commit`."""
        return self._inner.commit(items - {self._item})
