"""Claims of others once more, beside our own work, whenever it leaves us a turn.

The strategy of the job does it again; here is what it reads, and what that costs. Invariants: each
piece that is computed is a turn of its own, of the lowest rank, so real work goes between any two;
whoever is cancelled or fails in a replay leaves nothing behind.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

from contracts.governance.sealed import SealedClaim
from contracts.terms.errors import InvariantBroken, Malformed, NotFinite, Unavailable
from contracts.terms.ids import Digest
from contracts.terms.messages import JobSpec
from contracts.terms.work import Findings, Sort
from training.averaging.slices import in_peer_order
from training.strategies.port import (
    BASE,
    Comparison,
    Compute,
    Replayed,
    Shard,
    Strategy,
    shard_name,
)
from training.worker.engine import Engine
from training.worker.turns import Rank
from verification.draws.cases import Case
from verification.verdicts import PROJECTIONS, apart

T = TypeVar("T")

Get: TypeAlias = Callable[[Digest, Sort], Awaitable[bytes]]
"""Bytes by their digest; see `Source.get`."""


class Source(Protocol):
    """Everything that an audit reads: `Recording` and `Bundled` have it."""

    @property
    def spec(self) -> JobSpec:
        """Of the job."""

    def findings(self, report: Digest) -> Findings:
        """What a sealed report says; raises NotFound."""

    async def replay(self, sealed: SealedClaim, seed: bytes, comparison: Comparison) -> Replayed:
        """Do work again on its base; see `Strategy.replay`."""

    async def get(self, digest: Digest, sort: Sort) -> bytes:
        """Bytes of this digest: boundary tensors as they are formed, all else as it travels.

        Raises:
            NotFound: nobody has them. Unavailable: nobody is reached, or they may still come.
        """


class Meter:
    """Satisfies `port.Compute`: computes as soon as no work of the job waits for the device.

    Counts the CPU time that this takes of the thread that computes; threads that torch adds to it
    are not in it.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine, self.cpu_us = engine, 0

    async def __call__(self, function: Callable[[], T]) -> T:
        """See `port.Compute`; raises Unavailable: the device failed, or has no memory left."""

        def metered() -> T:
            began = time.thread_time_ns()
            try:
                return function()
            finally:
                self.cpu_us += (time.thread_time_ns() - began) // 1000

        try:
            return await self._engine.at(Rank.AUDIT, lambda: self._engine.run(metered))
        except (RuntimeError, MemoryError) as error:  # of torch; nothing is lost but this replay
            raise Unavailable(f"a replay broke off: {error}") from error


@dataclass(frozen=True)
class ReplaySource:
    """Satisfies `port.Source` by the digests that a claim and its leaves name."""

    sealed: SealedClaim
    weights: Path
    bytes_of: Get
    rows_of: Callable[[str], Awaitable[bytes]]

    def digest(self, name: str) -> Digest:
        """See `port.Source.digest`."""
        item = int(name.rpartition("/")[2])
        return next(leaf.tensor(name) for leaf in self.sealed.leaves if leaf.item == item)

    async def get(self, name: str) -> Any:
        """See `port.Source.get`; raises as `Source.get`."""
        if name == BASE:
            return self.weights
        if name.startswith("rows/"):
            return await self.rows_of(name)
        outputs = {shard_name(each.bucket): each.digest for each in self.sealed.claim.outputs}
        if name in outputs:
            return await self.bytes_of(outputs[name], "part")
        return await self.bytes_of(self.digest(name), "boundary")

    def put(self, name: str, data: bytes) -> Digest:
        """See `port.Source.put`."""
        raise InvariantBroken(f"a replay made {name}, which nobody asked it for")


# -------------------------------------------------------------------------------- what they show


@dataclass(frozen=True)
class Found:
    """What a replay showed: distances by name (1e-9), projections after each item (1e-6)."""

    distances: dict[str, int]
    projections: tuple[int, ...]


def compared_with_report(source: Source, case: Case, found: Found) -> dict[str, int]:
    """Distances of a replay; of a repeat also how far the report's projections lie from ours.

    Raises:
        NotFound: the report is of a step that is settled.
    """
    if case.kind != "report":
        return found.distances
    stated = source.findings(case.subject).projections
    return {**found.distances, PROJECTIONS: apart(stated, found.projections)}


async def sums_to_it(
    source: Source, sealed: SealedClaim, strategy: Strategy, compute: Compute
) -> bool:
    """Whether the parts of a bucket come to the bytes that its claim names.

    Parts that cannot be added up come to nothing. Raises: see `Source.get`.
    """
    claim, closed = sealed.claim, sealed.closed
    assert closed is not None  # of a bucket
    bucket = (claim.group, claim.bucket)
    own = in_peer_order(sealed.merged, source.spec.chunking.stages_of(bucket))
    weights = {each.digest(): (each.group, closed.weights[each.digest()]) for each in own}
    parts = [await source.get(each.outputs[claim.bucket].digest, "part") for each in own]
    shards = map(Shard, weights, parts)
    try:
        output, _ = await compute(lambda: strategy.reduce(bucket, shards, weights))
    except (Malformed, NotFinite):
        return False
    return output.digest == claim.outputs[0].digest
