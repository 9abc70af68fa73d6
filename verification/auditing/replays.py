"""Claims of others once more, beside our own work, whenever it leaves us a turn.

Invariants: an item is a turn of its own, of the lowest rank, so real work goes between any two; the
gradient of the round in work is not touched; whoever is cancelled or fails in a replay leaves
nothing behind. An auditor does one thing at a time, so a replay's memory is there once.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

from typing_extensions import Buffer

from contracts.terms.errors import Malformed, NotFinite, NotFound, Unavailable
from contracts.terms.ids import Digest
from contracts.terms.items import ItemNumber
from contracts.terms.messages import JobSpec
from contracts.terms.work import Findings, Sort, WorkClaim
from training.averaging.slices import Slice, terms_of
from training.telling import Tell, tell_nobody
from training.worker.engine import Engine
from training.worker.ports import Numbers, Replay, ReplayedUnit, Replayer, Rows
from training.worker.sealed import SealedClaim
from training.worker.turns import Rank
from verification.draws.cases import Case
from verification.verdicts import PROJECTIONS, apart

T = TypeVar("T")


class Source(Protocol):
    """Everything that an audit reads: `Recording` and `Bundled` have it."""

    @property
    def spec(self) -> JobSpec:
        """Of the job."""

    def findings(self, report: Digest) -> Findings:
        """What a sealed report says; raises NotFound."""

    def replay(self, claim: WorkClaim, seed: bytes) -> AbstractAsyncContextManager["RunningReplay"]:
        """Begin to do a claim of work again; see `replaying`."""

    async def get(self, digest: Digest, sort: Sort) -> bytes:
        """Wire bytes of this digest.

        Raises:
            NotFound: nobody has them. Unavailable: nobody is reached, or they may still come.
        """


class Meter:
    """CPU time that one replay takes of the thread that computes, by what it is for.

    Threads that torch adds to it are not in it.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._used_us = {"weights": 0, "passes": 0, "gradient": 0, "claims": 0}
        self.num_items = 0

    async def run_when_idle(self, what: str, function: Callable[[], T]) -> T:
        """See `run_when_idle`."""

        def metered() -> T:
            began = time.thread_time_ns()
            try:
                return function()
            finally:
                self._used_us[what] += (time.thread_time_ns() - began) // 1000

        return await run_when_idle(self._engine, metered)

    def told(self) -> dict[str, int]:
        """What to tell of it."""
        parts = {f"{what}_us": used for what, used in self._used_us.items()}
        return {"items": self.num_items, "cpu_us": sum(parts.values()), **parts}


class RunningReplay:
    """One claim on its way; see `ports.Replay` for what its methods raise, and `replaying`."""

    def __init__(self, meter: Meter, replay: Replay, keep_rows: "KeepRows | None") -> None:
        self._meter, self._replay, self._keep_rows = meter, replay, keep_rows

    async def item(self, item: ItemNumber, x: Buffer | None, dy: Buffer | None) -> ReplayedUnit:
        """The next item, in the order of the leaves, from the wire bytes of x and dy."""
        done = await self._meter.run_when_idle("passes", lambda: self._replay.unit(item, x, dy))
        self._meter.num_items += 1
        if self._keep_rows is not None and done.rows is not None:
            await self._keep_rows(done.rows)
        return done

    async def gradient(self) -> tuple[Slice, ...]:
        """All parts, as a claim of these items would name them."""
        return await self._meter.run_when_idle("gradient", self._replay.gradient)

    async def boundary(self, data: Buffer) -> Numbers:
        """The numbers that a boundary tensor's wire bytes spell."""
        return await self._meter.run_when_idle("claims", lambda: self._replay.boundary(data))

    async def parameters(
        self, parts: Sequence[Buffer], norms_squared: Sequence[int] = ()
    ) -> dict[str, Numbers]:
        """The gradient of each parameter, from the wire bytes of all parts in order."""
        decode = partial(self._replay.parameters, parts, norms_squared)
        return await self._meter.run_when_idle("claims", decode)


KeepRows: TypeAlias = Callable[[Rows], Awaitable[None]]
"""Holds on to rows that a replay has read."""


@asynccontextmanager
async def replaying(
    engine: Engine,
    replayer: Callable[[], Replayer],
    weights: Path,
    claim: WorkClaim,
    seed: bytes,
    *,
    keep_rows: KeepRows | None = None,
    tell: Tell = tell_nobody,
) -> AsyncIterator[RunningReplay]:
    """Do a claim of work again; tells what it has cost, as `replayed`.

    Args:
        engine: That computes.
        replayer: Of the claim's group; called where it may take long.
        weights: Those of the claim's base.
        claim: Whose base the weights have to be.
        seed: Of the projections, 32 bytes.
        keep_rows: Called with the rows of each item that reads any.
        tell: The log.

    Raises:
        WrongBytes: the weights are of another state. Malformed, UnknownVersion: they are damaged.
        Unavailable: they are gone, this process is stopping, or the device failed or has no memory
            left.
    """
    meter = Meter(engine)
    try:
        try:
            replay = await meter.run_when_idle(
                "weights", lambda: replayer().begin(claim.round, weights, claim.base, seed)
            )
        except NotFound as error:  # our own file: nobody else is to blame
            raise Unavailable(error.message) from error
        yield RunningReplay(meter, replay, keep_rows)
    finally:  # what broke off has cost something, too
        tell("replayed", step=claim.round, stage=claim.group, **meter.told())


async def run_when_idle(engine: Engine, function: Callable[[], T]) -> T:
    """Compute as soon as no work of the job waits for the device.

    Raises:
        Unavailable: the device failed, or has no memory left. Whatever of ours `function` raises.
    """
    try:
        return await engine.at(Rank.AUDIT, lambda: engine.run(function))
    except (RuntimeError, MemoryError) as error:  # of torch; nothing that others wait for is lost
        raise Unavailable(f"a replay broke off: {error}") from error


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


Mean: TypeAlias = Callable[[Sequence[Buffer], Sequence[int], Sequence[int]], Slice]
"""See `Compute.mean`."""


async def sums_to_it(source: Source, sealed: SealedClaim, mean: Mean, engine: Engine) -> bool:
    """Whether the parts of a bucket come to the bytes that its claim names.

    Parts that cannot be added up come to nothing. Raises: see `Source.get`.
    """
    claim, closed = sealed.claim, sealed.closed
    assert closed is not None  # of a bucket
    chunk = (claim.group, claim.bucket)
    terms = terms_of(source.spec.chunking, closed, sealed.merged, chunk)
    parts = [await source.get(term.digest, "part") for term in terms]
    weights, totals = [term.weight for term in terms], [term.total for term in terms]
    try:
        found = await run_when_idle(engine, partial(mean, parts, weights, totals))
    except (Malformed, NotFinite):
        return False
    return found.digest == claim.outputs[0].digest
