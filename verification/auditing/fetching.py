"""How does an auditor get its data? Tensors and parts that others have bound themselves to.

Invariant: what is returned has the digest that a sealed GradCommit, or one of its leaves, names, so
it does not matter who serves it. The order: a member's own disk, then any holder (in the order of
`training.worker.patience`), then everybody, through the coordinator. A member stores the tensors
that it fetches for as long as its own work of that step: the peers that served them may be gone
before the next auditor asks.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeAlias

from contracts.terms.errors import Misbehaved, NotFound, TallystickError, Unavailable
from contracts.terms.ids import ChunkIndex, Digest, PeerId, StepNumber
from contracts.terms.messages import GradCommit, TensorHeader
from training.transport.calls import Held
from training.worker.engine import Engine
from training.worker.patience import Patience
from training.worker.peers import Peers
from training.worker.tensors import Kept, OnDisk

PartOf: TypeAlias = Callable[[GradCommit, ChunkIndex, Patience], Awaitable[bytes]]
Wanted: TypeAlias = tuple[Digest, Sequence[PeerId]]
"""A boundary tensor and its holders."""
AHEAD = 4  # fetches of one audit at once


class Fetcher:
    """Of one job; `on_disk` is None for an outside auditor, which stores nothing."""

    def __init__(
        self,
        engine: Engine,
        peers: Peers,
        part_of: PartOf,
        on_disk: Callable[[], OnDisk] | None = None,
    ) -> None:
        self._engine, self._peers, self._part_of = engine, peers, part_of
        self._on_disk = on_disk
        self.patience = Patience()

    async def ahead(self, commit: GradCommit, wanted: Iterable[Wanted]) -> None:
        """Take tensors and parts that an audit needs onto our disk, a few at a time.

        So several silent holders cost their time together, not one after another. What does not
        come is asked for once more when it is needed.
        """
        if self._on_disk is None:  # a few in memory is all that there is room for
            return
        lanes = asyncio.Semaphore(AHEAD)

        async def one(fetch: Callable[[], Awaitable[object]]) -> None:
            async with lanes:
                with suppress(TallystickError):
                    await fetch()

        fetches: list[Callable[[], Awaitable[object]]] = [
            partial(self._taken, commit.step, *each) for each in wanted
        ]
        fetches += [partial(self._part_of, commit, e.chunk, self.patience) for e in commit.parts]
        await asyncio.gather(*map(one, fetches))

    async def _taken(self, step: StepNumber, digest: Digest, holders: Sequence[PeerId]) -> None:
        if await self._stored(step, digest) is None:
            await self._keep(await self._fetched(step, digest, holders))

    async def tensor(self, step: StepNumber, digest: Digest, holders: Sequence[PeerId]) -> Kept:
        """A boundary tensor of a sealed step.

        Args:
            step: Of the unit.
            digest: That a leaf names.
            holders: Who sent and who received it, in the order in which they are asked; but whose
                work is audited comes last.

        Raises:
            NotFound: it is missing, and a Notice says so. Unavailable: it may still come.
            Conflict: nobody asks us for an audit that needs it (any more).
        """
        if (stored := await self._stored(step, digest)) is not None:
            return stored
        try:
            kept = await self._fetched(step, digest, holders)
        except (NotFound, Unavailable):  # of a holder that is not reached we cannot say anything
            kept = await self._peers.find_tensor(digest)
        await self._keep(kept)
        return kept

    async def _fetched(self, step: StepNumber, digest: Digest, holders: Sequence[PeerId]) -> Kept:
        if not holders:
            raise NotFound("nobody is said to have this boundary tensor", digest=digest.hex())

        def check(header: TensorHeader) -> None:
            """Its digest is bound; whatever else the header says was compared before the seal."""

        held = Held(digest=digest, holders=tuple(holders))
        return await self._peers.fetch_tensor(
            held, step, check, is_bound=True, patience=self.patience
        )

    async def _stored(self, step: StepNumber, digest: Digest) -> Kept | None:
        if self._on_disk is None:
            return None
        on_disk = self._on_disk()
        try:
            return await self._engine.run_io(lambda: on_disk.get(step, digest))
        except (NotFound, Unavailable, Misbehaved):  # the disk has lost it; others have it too
            return None

    async def _keep(self, kept: Kept) -> None:
        if self._on_disk is not None:
            audited = self._on_disk().audited
            with suppress(Unavailable):  # a full disk stops no audit
                await self._engine.run_io(lambda: audited.put(kept))

    async def part(self, commit: GradCommit, chunk: ChunkIndex) -> bytes:
        """Wire bytes of one part of a gradient that was bound; raises as `tensor`."""
        try:
            return await self._part_of(commit, chunk, self.patience)
        except Unavailable:
            return await self._peers.find_part(commit.parts[chunk].digest)
