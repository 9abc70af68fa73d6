"""Peer-steps of others once more, beside our own work, whenever it leaves us a turn.

Member and outside auditor replay alike: they differ in where the weights come from. An outside
auditor downloads those of a stage from its members (`DownloadedWeights`), which costs 4 bytes a
parameter of traffic and of disk (docs/protocol.md 7).

Invariants: one replay at a time, so that its memory is there once; a unit is a turn of its own, of
the lowest rank, so real work goes between any two units; the gradient of the step in work is not
touched; whoever is cancelled or fails in a replay leaves nothing behind. Downloaded weights are
used only after their root was computed and lies under the state root that the caller has from a
GradCommit; one file stays, the last one.
"""

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

from typing_extensions import Buffer

from contracts.governance.record import JobRecord
from contracts.terms.errors import Misbehaved, NotFound, Refused, TallystickError, Unavailable
from contracts.terms.ids import ChunkIndex, Digest, PeerId, StageIndex, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.messages import AuditReport, GradCommit
from training.averaging.slices import Slice
from training.telling import Tell, tell_nobody, telling_about
from training.transport.calls import WeightsView
from training.worker.download import Download, holders_of
from training.worker.engine import Engine
from training.worker.peers import Peers
from training.worker.ports import Numbers, Replay, ReplayedUnit, Replayer
from training.worker.shared_files import WeightsFile
from training.worker.turns import Rank

T = TypeVar("T")

WeightsOf: TypeAlias = Callable[[StepNumber, Digest], Awaitable[Path]]
"""File of the weights that a step was computed on, whose state has this root; raises NotFound."""


class Source(Protocol):
    """Everything that a replay needs: `AuditedJob`, `Recording` and `Bundled` have it."""

    @property
    def record(self) -> JobRecord:
        """What the seals so far establish."""

    def replays_in(self, stage: StageIndex) -> "Replays":
        """Of a stage that we audit in."""

    def state_of(self, commit: GradCommit) -> Digest:
        """Root of the state of its stage, in which the commit is judged.

        Raises:
            Unavailable: members differ, and no AverageSet has followed that says who was right.
        """

    def report(self, name: Digest) -> AuditReport:
        """A sealed report; raises NotFound."""

    async def tensor(
        self, step: StepNumber, stages: Sequence[int], unit: ItemNumber, digest: Digest
    ) -> bytes:
        """A boundary tensor between two stages, as it is digested (`formed_tensor`).

        Args:
            step: Of the unit.
            stages: The one below the tensor and the one above.
            unit: Whose tensor it is.
            digest: That a leaf names.

        Raises:
            NotFound, Unavailable: nobody has it, or nobody is reached.
        """

    async def part(self, commit: GradCommit, chunk: ChunkIndex) -> bytes:
        """Wire bytes of a part of a gradient; raises Unavailable."""


class Meter:
    """CPU time that one replay takes of the thread that computes, by what it is for.

    Threads that torch adds to it are not in it.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._used_us = {"weights": 0, "passes": 0, "gradient": 0, "claims": 0}
        self.num_units = 0

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
        return {"units": self.num_units, "cpu_us": sum(parts.values()), **parts}


class RunningReplay:
    """One peer-step on its way; see `ports.Replay` for what its methods raise, and `Replays`."""

    def __init__(self, meter: Meter, replay: Replay, weights: Path) -> None:
        self._meter, self._replay = meter, replay
        self.weights = weights  # the file that it is done on

    async def unit(self, unit: ItemNumber, x: Buffer | None, dy: Buffer | None) -> ReplayedUnit:
        """The next unit, in the order of the leaves, from the wire bytes of x and dy."""
        done = await self._meter.run_when_idle("passes", lambda: self._replay.unit(unit, x, dy))
        self._meter.num_units += 1
        return done

    async def gradient(self) -> tuple[Slice, ...]:
        """All parts, as a GradCommit over these units would bind them."""
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


class Replays:
    """Begins replays in one stage, one after another; tells what each has cost, as `replayed`."""

    def __init__(
        self,
        engine: Engine,
        replayer: Callable[[], Replayer],
        weights_of: WeightsOf,
        tell: Tell = tell_nobody,
    ) -> None:
        self._engine, self._replayer, self._weights_of = engine, replayer, weights_of
        self._tell, self._one = tell, asyncio.Lock()

    @asynccontextmanager
    async def begin(
        self, step: StepNumber, state_root: Digest, seed: bytes
    ) -> AsyncIterator[RunningReplay]:
        """Replay a peer-step of `step`; waits until nobody else replays here.

        Args:
            step: Of the GradCommit.
            state_root: That it says.
            seed: Of the projections, 32 bytes.

        Raises:
            NotFound: the weights of that step are not kept any more, or were never here.
            WrongBytes: ours are of another state. Malformed, UnknownVersion: the file is damaged.
            Unavailable: this process is stopping, or the device failed or has no memory left.
        """
        async with self._one:
            weights, replayer = await self._weights_of(step, state_root), self._replayer()
            meter = Meter(self._engine)
            try:
                replay = await meter.run_when_idle(
                    "weights", lambda: replayer.begin(step, weights, state_root, seed)
                )
                yield RunningReplay(meter, replay, weights)
            finally:  # what broke off has cost something, too
                self._tell("replayed", step=step, **meter.told())


async def run_when_idle(engine: Engine, function: Callable[[], T]) -> T:
    """Compute as soon as no work of the job waits for the device.

    Raises:
        Unavailable: the device failed, or has no memory left. Whatever of ours `function` raises.
    """
    try:
        return await engine.at(Rank.AUDIT, lambda: engine.run(function))
    except (RuntimeError, MemoryError) as error:  # of torch; nothing that others wait for is lost
        raise Unavailable(f"a replay broke off: {error}") from error


class DownloadedWeights:
    """Satisfies `replays.WeightsOf` for one stage."""

    def __init__(
        self,
        peers: Peers,
        stage: StageIndex,
        folder: Path,
        *,
        engine: Engine,
        replayer: Replayer,
        most_bytes: int,
        tell: Tell,
        doer: Callable[[], PeerId | None] = lambda: None,
    ) -> None:
        """`folder` is for this alone; a file of more than `most_bytes` cannot be the weights.

        `doer`: whose work they are for now; it gains by our waiting, so it is asked last.
        """
        self._peers, self._stage, self._folder = peers, stage, folder
        self._engine, self._replayer = engine, replayer
        self._most_bytes, self._tell, self._doer = most_bytes, tell, doer

    async def __call__(self, step: StepNumber, state_root: Digest) -> Path:
        """File of the weights that `step` was computed on.

        Raises:
            NotFound: no member has them any more. Unavailable: no member who is reached, or the
                disk is full. Misbehaved: what all who are reached offer is of another state.
        """
        path = self._folder / f"{step:08d}-{state_root.hex()}.weights"
        if path.exists():
            return path
        mates, doer = self._peers.mates(self._stage), self._doer()
        others = tuple(peer for peer in mates if peer != doer)
        try:
            return await self._from(others, step, state_root, path)
        except (Misbehaved, Unavailable, Refused):
            if doer is None or doer not in mates:
                raise
        return await self._from((doer,), step, state_root, path)

    async def _from(
        self, mates: tuple[PeerId, ...], step: StepNumber, state_root: Digest, path: Path
    ) -> Path:
        wanted = WeightsFile(self._peers, self._stage, StepNumber(step - 1), state_root, mates)
        error: TallystickError = NotFound(f"no member has the {wanted.name}")
        for view, holders in await holders_of(wanted, self._most_bytes):
            # All together, then each alone: one who lies then spoils his own file only.
            for group in (holders, *([holder] for holder in holders if len(holders) > 1)):
                try:
                    await self._download(wanted, view, group, path)
                    return path
                except (Misbehaved, Unavailable, Refused) as failure:
                    reason = {"code": failure.code, "reason": failure.message}
                    self._tell("weights_not_loaded", step=step, stage=self._stage, **reason)
                    error = failure
        raise error

    async def _download(
        self, wanted: WeightsFile, view: WeightsView, holders: list[PeerId], path: Path
    ) -> None:
        folder = self._folder / view.digest.hex()
        tell = telling_about(self._tell, step=wanted.step, stage=self._stage)
        file = await Download(wanted, view, folder, tell).file(holders)
        try:
            await run_when_idle(
                self._engine, lambda: self._replayer.need_weights(file, wanted.state_root)
            )
            await asyncio.to_thread(self._keep, file, path)
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    def _keep(self, file: Path, path: Path) -> None:
        try:
            for old in self._folder.glob("*.weights"):
                old.unlink(missing_ok=True)
            os.replace(file, path)
        except OSError as error:
            raise Unavailable(f"cannot keep {path}: {error.strerror}") from error
