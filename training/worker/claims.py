"""What others have bound themselves to, as bytes: what an auditor starts from and compares.

Invariant: what is returned has the digest that a sealed GradCommit, or one of its leaves, says, so
it does not matter who hands it out: our own disk is asked first, then any holder. Nothing is kept
here but parts, which go with their step.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from contracts.terms.errors import Misbehaved, NotFound, Unavailable
from contracts.terms.ids import ChunkIndex, Digest, PeerId, StepNumber
from contracts.terms.messages import GradCommit, TensorHeader
from training.transport.calls import Held
from training.worker.engine import Engine
from training.worker.peers import Peers
from training.worker.tensors import Tensors

PartOf: TypeAlias = Callable[[GradCommit, ChunkIndex], Awaitable[bytes]]


class Claims:
    """Of one job; `tensors` are our own, None for who is no member."""

    def __init__(
        self,
        engine: Engine,
        peers: Peers,
        part_of: PartOf,
        tensors: Callable[[], Tensors] | None = None,
    ) -> None:
        self._engine, self._peers, self._part_of = engine, peers, part_of
        self._tensors = tensors

    async def tensor(self, step: StepNumber, digest: Digest, holders: Sequence[PeerId]) -> bytes:
        """Wire bytes of a boundary tensor of a sealed step.

        Args:
            step: Of the unit.
            digest: That a leaf names.
            holders: Who sent and who received it, in the order in which they are asked.

        Raises:
            NotFound: no holder that is a member has it. Unavailable: one of them is not reached.
        """
        if (data := await self._stored(step, digest)) is not None:
            return data
        if not holders:
            raise NotFound("nobody is said to have this boundary tensor", digest=digest.hex())

        def check(header: TensorHeader) -> None:
            """Its digest is bound; whatever else the header says was compared before the seal."""

        held = Held(digest=digest, holders=tuple(holders))
        return (await self._peers.fetch_tensor(held, step, check, is_bound=True)).data

    async def _stored(self, step: StepNumber, digest: Digest) -> bytes | None:
        tensors = self._tensors() if self._tensors else None
        if tensors is None or not tensors.has(step, digest):
            return None
        try:
            return (await self._engine.beside(lambda: tensors.get(step, digest))).data
        except (NotFound, Unavailable, Misbehaved):  # the disk has lost it; others have it too
            return None

    async def part(self, commit: GradCommit, chunk: ChunkIndex) -> bytes:
        """Wire bytes of one part of a gradient that was bound.

        Raises:
            Unavailable: nobody who is reached has it.
        """
        return await self._part_of(commit, chunk)
