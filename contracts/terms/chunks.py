"""Which chunks the gradients of a job are summed in: whose parts make one, who applies it. Pure.

A stage cuts its gradient into C chunks, and its members sum them among themselves. A tied head in
another stage than the embedding is the one exception: the first and the last stage each hold a
copy of that matrix, and the copies stay equal only if both take one update. So these two cut it
apart from the rest, their chunks 0 to C - 1 are their own, and C to 2C - 1 are shared. A shared
chunk exists once, under the first stage, whose members sum it:

    weighted mean of the first stage's parts + weighted mean of the last stage's parts

which is the gradient of the one matrix of the whole model. Its norm is counted once, so the clip
is that of the whole model too.

Where peers exchange several vectors they are cut alike, one after the other: the first in chunks 0
to C - 1, the next in C to 2C - 1.

Invariants: output n of a claim goes into the chunk with the number n; every chunk has one stage
whose members sum it; a stage applies exactly the chunks that it gives parts to.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from contracts.terms.ids import ChunkIndex, StageIndex

Chunk: TypeAlias = tuple[StageIndex, ChunkIndex]
"""The stage whose members sum it, and its number there."""

MAX_CHUNK_BYTES = 240 * 2**20
"""Of a chunk, and of any tensor, in the codec of the job: what one call carries."""
_FIRST = StageIndex(0)


@dataclass(frozen=True)
class Chunking:
    """The chunks of a job."""

    num_stages: int
    num_chunks: int  # of what a stage has for itself
    is_tied: bool  # the head is the embedding
    num_vectors: int = 1  # that a stage cuts; several of one stage alone

    @property
    def is_shared(self) -> bool:
        """Whether the first and the last stage, two of them, hold the same matrix."""
        return self.is_tied and self.num_stages > 1

    @property
    def num_all(self) -> int:
        """How many chunks the job has."""
        return self.num_chunks * (self.num_stages * self.num_vectors + self.is_shared)

    def of_stage(self, stage: StageIndex) -> tuple[Chunk, ...]:
        """Chunks that a stage gives parts to, and applies, in the order of its gradient."""
        return self._of_stage.get(stage, ())

    def stages_of(self, chunk: Chunk) -> tuple[StageIndex, ...]:
        """Stages that give parts to a chunk, and apply it, ascending; none: no such chunk."""
        return self._stages_of.get(chunk, ())

    @cached_property
    def all(self) -> tuple[Chunk, ...]:
        """Every chunk of the job."""
        return tuple(sorted(self._stages_of))

    @cached_property
    def _of_stage(self) -> dict[StageIndex, tuple[Chunk, ...]]:
        numbers = range(self.num_chunks * self.num_vectors)
        shared = tuple((_FIRST, ChunkIndex(self.num_chunks + number)) for number in numbers)
        ends = {0, self.num_stages - 1} if self.is_shared else set[int]()
        return {
            stage: tuple((stage, ChunkIndex(number)) for number in numbers)
            + (shared if stage in ends else ())
            for stage in map(StageIndex, range(self.num_stages))
        }

    @cached_property
    def _stages_of(self) -> dict[Chunk, tuple[StageIndex, ...]]:
        found: dict[Chunk, tuple[StageIndex, ...]] = {}
        for stage, chunks in self._of_stage.items():
            for chunk in chunks:
                found[chunk] = (*found.get(chunk, ()), stage)
        return found
