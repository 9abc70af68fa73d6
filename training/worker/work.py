"""A peer at work in a step: units in order, GradCommit, sums, seal, update.

Invariants
- The bytes of a gradient depend on the units of its GradCommit alone: they are added in ascending
  order, and added again from nothing when they came in another order or with others.
- Disk first, then the journal, then the network; the same question gets the same answer.
- Only bytes whose digests a valid seal names reach the weights.

Handlers wait for each other at `_turn`, so that one of them computes at a time.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from contracts.keys.wallet import Session as SessionKeys
from contracts.terms.errors import (
    Conflict,
    Equivocation,
    InvariantBroken,
    Malformed,
    NotFound,
    TallystickError,
    Unavailable,
    WrongBytes,
)
from contracts.terms.history import Kept, Leaves, unit_leaves_root
from contracts.terms.ids import ChunkIndex, Digest, PeerId, StageIndex, StepNumber, UnitId
from contracts.terms.messages import (
    AveragedChunk,
    AverageSet,
    GradCommit,
    Message,
    PartDigest,
    StepClose,
    UnitLeaf,
)
from contracts.terms.signatures import Signed, verify_session
from training.averaging.slices import Slice, in_peer_order, need_digest, slice_digest
from training.swarm.state import Part
from training.swarm.step import assigned_units
from training.telling import Tell
from training.worker.book import OwnCommit, SealedStep, WorkerBook, last_seal
from training.worker.peers import Peers
from training.worker.ports import Compute, Roots
from training.worker.store import Store

T = TypeVar("T")


class Work:
    """One worker's part in a job."""

    def __init__(
        self,
        book: WorkerBook,
        compute: Compute,
        folder: Path,
        peers: Peers,
        session: SessionKeys,
        tell: Tell,
    ) -> None:
        self.book, self._compute, self._peers = book, compute, peers
        self._session, self._tell = session, tell
        self._store, self._checkpoints = Store(folder), folder / "checkpoints"
        self._stage = StageIndex(0)  # until the coordinator says
        self._applied = StepNumber(0)
        self._roots: Roots | None = None
        self._leaves: dict[UnitId, UnitLeaf] = {}  # computed in this step, in this process
        self._turn = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="compute")
        self._validated: dict[StepNumber, int] = {}
        self._all_applied = StepNumber(0)  # by every member, says the coordinator
        self._started: set[asyncio.Task[Any]] = set()
        self._closed = False
        self.broken: asyncio.Future[InvariantBroken] = asyncio.get_running_loop().create_future()
        """Set when we are in a state that must not be: the process has to end."""

    # ------------------------------------------------------------------------------ who, where

    @property
    def peer(self) -> PeerId:
        """Our id."""
        return self._session.peer

    @property
    def applied(self) -> StepNumber:
        """The last step whose seal is in our state."""
        return self._applied

    @property
    def step(self) -> StepNumber:
        """The step that we work on."""
        return StepNumber(self._applied + 1)

    @property
    def stage(self) -> StageIndex:
        """The stage that the coordinator gave us."""
        return self._stage

    @property
    def roots(self) -> Roots:
        """Digests of our state."""
        assert self._roots is not None  # since `resume`
        return self._roots

    @property
    def is_over(self) -> bool:
        """Whether the last seal is in our state."""
        return self.book.record.ended and self._applied == self.book.sealed

    def held(self) -> tuple[UnitId, ...]:
        """Units of this step that we have computed or committed to."""
        return tuple(sorted(self._leaves.keys() | self.book.committed()))

    def take_stage(self, stage: int) -> None:
        """Work in this stage."""
        self._stage = StageIndex(stage)

    async def _run(self, function: Callable[[], T]) -> T:
        """Compute in the one thread for it; runs to its end even if nobody waits any more."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    async def _whole(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do `work` to its end, even if whoever asked for it is gone: it changes what we are."""
        if self._closed:
            raise Unavailable("this process is stopping")
        task = asyncio.create_task(self._or_break(work))
        self._started.add(task)
        task.add_done_callback(self._started.discard)
        return await asyncio.shield(task)

    async def _or_break(self, work: Callable[[], Awaitable[T]]) -> T:
        try:
            return await work()
        except InvariantBroken as error:
            if not self.broken.done():
                self.broken.set_result(error)
            raise

    async def close(self) -> None:
        """Stop; what the thread computes at this moment is waited for."""
        self._closed = True
        for task in self._started:
            task.cancel()
        await asyncio.gather(*self._started, return_exceptions=True)
        self._thread.shutdown(wait=True)

    # --------------------------------------------------------------------------------- resuming

    async def resume(self) -> None:
        """Build the state of the last seal again: newest checkpoint, then averaged chunks.

        Raises:
            Unavailable: a chunk is not on our disk, and nobody who is reached has it.
            InvariantBroken: the state differs from the one that was there before.
        """
        self._applied = await self._run(lambda: self._compute.restore(self._checkpoints))
        if self._applied > self.book.sealed:
            raise Conflict("checkpoints are ahead of the journal: it was lost or replaced")
        self._roots = await self._run(self._compute.roots)
        while self._applied < self.book.sealed:
            await self._apply(self.book.steps[self.step])
        self._tell("resumed", step=self._applied, state_root=self.roots.state)

    # ------------------------------------------------------------------------------------ units

    async def unit(self, step: StepNumber, unit: UnitId) -> UnitLeaf:
        """Compute a unit, once; units that are asked for at the same time run in that order.

        Raises:
            Unavailable: we have not come to that step yet.
            Conflict: that step is over.
            NotFinite, WrongBytes: see `Compute.add_unit`.
        """
        self._need_step(step)
        if unit in self._leaves:
            return self._leaves[unit]
        return await self._whole(lambda: self._add_unit(step, unit))

    async def _add_unit(self, step: StepNumber, unit: UnitId) -> UnitLeaf:
        async with self._turn:
            self._need_step(step)
            if unit in self._leaves:
                return self._leaves[unit]
            leaf = await self._run(lambda: self._compute.add_unit(step, unit))
            self._leaves[unit] = leaf
            self._tell("unit_done", step=step, unit=unit, loss=leaf.loss)
            return leaf

    def _need_step(self, step: StepNumber) -> None:
        if step > self.step:
            raise Unavailable(f"step {step} is not here yet, this is {self.step}")
        if step < self.step:
            raise Conflict(f"step {step} is over, this is {self.step}")

    # ----------------------------------------------------------------------------------- commit

    async def commit(self, close: Signed[StepClose]) -> tuple[UnitId, ...] | list[OwnCommit]:
        """Bind ourselves to the units that a StepClose gives us, or say which we lack.

        Raises:
            BadSignature: not the coordinator's. Unavailable, Conflict: see `unit`.
        """
        verify_session(close, self.book.record.opening.session_key)
        return await self._whole(lambda: self._commit(close))

    async def _commit(self, close: Signed[StepClose]) -> tuple[UnitId, ...] | list[OwnCommit]:
        async with self._turn:
            self._need_step(close.message.step)
            given = assigned_units(close.message, self._stage, self.peer)
            owed = tuple(unit for unit in given if unit not in self.book.committed())
            if lacked := tuple(unit for unit in owed if unit not in self._leaves):
                return lacked
            if owed:
                await self._bind(close.message, owed)
            return [commit for commit in self.book.commits if commit.units <= set(given)]

    async def _bind(self, close: StepClose, units: tuple[UnitId, ...]) -> None:
        slices = await self._run(lambda: self._gradient_of(close.step, units))
        leaves = tuple(self._leaves[unit] for unit in units)
        message = self._grad_commit(close, leaves, slices)
        for chunk, piece in enumerate(slices):
            self._store.put_part(close.step, message.digest(), ChunkIndex(chunk), piece.data)
        own = OwnCommit(self._session.sign(message), Leaves(message.digest(), leaves))
        self.book.keep_commit(own)
        await self._run(self._compute.begin_step)  # a further round starts from nothing
        self._tell("grad_commit_stored", step=close.step, round=message.round, units=len(units))

    def _gradient_of(self, step: StepNumber, units: tuple[UnitId, ...]) -> tuple[Slice, ...]:
        if self._compute.units != units:
            self._compute.begin_step()
            for unit in units:
                self._leaves[unit] = self._compute.add_unit(step, unit)
        return self._compute.gradient()

    def _grad_commit(
        self, close: StepClose, leaves: tuple[UnitLeaf, ...], slices: Iterable[Slice]
    ) -> GradCommit:
        record = self.book.record
        return GradCommit(
            job=record.job,
            step=close.step,
            round=len(self.book.commits),
            stage=self._stage,
            peer=self.peer,
            step_close=close.digest(),
            previous_seal=record.previous,
            state_root=self.roots.state,
            units_root=unit_leaves_root(leaves),
            num_units=len(leaves),
            num_samples=len(leaves) * record.spec.batch.rows_per_unit,
            parts=tuple(
                PartDigest(
                    chunk=ChunkIndex(chunk), digest=piece.digest, norm_squared=piece.norm_squared
                )
                for chunk, piece in enumerate(slices)
            ),
            reports=(),
        )

    # ---------------------------------------------------------------------------------- average

    async def hold(
        self, parts: Iterable[Part], commits: dict[Digest, Signed[GradCommit]]
    ) -> list[Part]:
        """Fetch parts of others; returns those that are here now."""
        held = []
        for name, chunk in parts:
            try:
                await self._part(commits[name].message, chunk)
            except TallystickError as error:  # the coordinator sees which are not here
                self._tell(
                    "part_not_fetched",
                    step=self.step,
                    chunk=chunk,
                    code=error.code,
                    reason=error.message,
                )
            else:
                held.append((name, chunk))
        return held

    async def _part(self, commit: GradCommit, chunk: ChunkIndex) -> bytes:
        data = self._store.part(commit.step, commit.digest(), chunk)
        if data is not None and slice_digest(data) == commit.parts[chunk].digest:
            return data
        data = await self._peers.fetch_part(commit, chunk)
        await self._need_norm(data, commit.parts[chunk].norm_squared)
        self._store.put_part(commit.step, commit.digest(), chunk, data)
        return data

    async def average(
        self,
        average: Signed[AverageSet],
        commits: dict[Digest, Signed[GradCommit]],
        chunks: Iterable[ChunkIndex],
    ) -> list[Signed[AveragedChunk]]:
        """Sum these chunks over the members of the AverageSet, and bind ourselves to the means.

        Raises:
            BadSignature: not the coordinator's. Unavailable: a part cannot be fetched.
            Equivocation: this chunk was averaged over another AverageSet.
        """
        verify_session(average, self.book.record.opening.session_key)
        return await self._whole(lambda: self._average_all(average.message, commits, tuple(chunks)))

    async def _average_all(
        self,
        average: AverageSet,
        commits: dict[Digest, Signed[GradCommit]],
        chunks: tuple[ChunkIndex, ...],
    ) -> list[Signed[AveragedChunk]]:
        async with self._turn:
            self._need_step(average.step)
            return [await self._average(average, commits, chunk) for chunk in chunks]

    async def _average(
        self, average: AverageSet, commits: dict[Digest, Signed[GradCommit]], chunk: ChunkIndex
    ) -> Signed[AveragedChunk]:
        if known := self.book.chunks.get(chunk):
            if known.message.average_set != average.digest():
                raise Equivocation(f"two AverageSets of step {average.step}")
            return known
        messages = {name: signed.message for name, signed in commits.items()}
        mean = await self._sum(average, messages, chunk)
        self._store.put_chunk(average.step, chunk, mean.data)
        signed = self._session.sign(self._averaged(average, chunk, mean))
        self.book.keep_chunk(signed)
        self._tell("chunk_stored", step=average.step, chunk=chunk)
        return signed

    def _averaged(self, average: AverageSet, chunk: ChunkIndex, mean: Slice) -> AveragedChunk:
        return AveragedChunk(
            job=average.job,
            step=average.step,
            stage=self._stage,
            peer=self.peer,
            average_set=average.digest(),
            chunk=chunk,
            chunk_digest=mean.digest,
            norm_squared=mean.norm_squared,
        )

    # ------------------------------------------------------------------------------------- seal

    async def take_seal(
        self, items: list[Kept], all_applied: StepNumber
    ) -> tuple[StepNumber, int | None]:
        """Check a seal, store it with everything under it, and apply it.

        Args:
            items: What is under the seal, in order, itself last.
            all_applied: Chunks of later steps may be fetched from us.

        Returns:
            Its step, and the loss on validation rows (1e-6) if one was due.

        Raises:
            InvalidSeal, Equivocation, BadSignature, Malformed, Conflict: see `read_seal`.
            Unavailable: a chunk that it names cannot be fetched.
        """
        self._all_applied = all_applied
        return await self._whole(lambda: self._take(items))

    async def _take(self, items: list[Kept]) -> tuple[StepNumber, int | None]:
        async with self._turn:
            if (seal := self.book.read_seal(items)) is not None:
                await self._take_new(seal.message.step, items)
            while self._applied < self.book.sealed:
                await self._apply(self.book.steps[self.step])
            step = last_seal(items).message.step
            return step, await self._validation_of(step)

    async def _take_new(self, step: StepNumber, items: list[Kept]) -> None:
        messages = [item.message for item in items if isinstance(item, Signed)]
        for chunk in messages:
            if isinstance(chunk, AveragedChunk) and chunk.stage == self._stage:
                await self._chunk_or_sum(chunk, messages)
        self.book.keep_seal(items)
        self._tell("seal_stored", step=step)

    async def _chunk_or_sum(self, chunk: AveragedChunk, messages: Sequence[Message]) -> bytes:
        """An averaged chunk, summed again from its parts if who summed it took it along."""
        try:
            return await self._chunk(chunk)
        except Unavailable:
            mean = await self._sum(
                next(message for message in messages if isinstance(message, AverageSet)),
                {m.digest(): m for m in messages if isinstance(m, GradCommit)},
                chunk.chunk,
            )
            need_digest(mean.data, chunk.chunk_digest)
            self._store.put_chunk(chunk.step, chunk.chunk, mean.data)
            self._tell("chunk_summed_again", step=chunk.step, chunk=chunk.chunk)
            return mean.data

    async def _sum(
        self, average: AverageSet, commits: Mapping[Digest, GradCommit], chunk: ChunkIndex
    ) -> Slice:
        weights = {member.grad_commit: member.weight for member in average.members}
        if not weights.keys() <= commits.keys():
            raise Malformed("an AverageSet came without all of its GradCommits")
        ordered = in_peer_order((commits[name] for name in weights), self._stage)
        parts = [await self._part(commit, chunk) for commit in ordered]
        own = [weights[commit.digest()] for commit in ordered]
        return await self._run(lambda: self._compute.mean(parts, own))

    async def _chunk(self, chunk: AveragedChunk) -> bytes:
        data = self._store.chunk(chunk.step, chunk.chunk)
        if data is not None and slice_digest(data) == chunk.chunk_digest:
            return data
        data = await self._peers.fetch_chunk(chunk)
        await self._need_norm(data, chunk.norm_squared)
        self._store.put_chunk(chunk.step, chunk.chunk, data)
        return data

    async def _need_norm(self, data: bytes, norm_squared: int) -> None:
        """Refuse what is not finite, or as long as was said: it would decide the clip of all.

        Raises:
            NotFinite: inf or nan. WrongBytes: another norm.
        """
        actual = (await self._run(lambda: self._compute.mean([data], [1]))).norm_squared
        if actual != norm_squared:
            raise WrongBytes(
                "a chunk is not as long as was said", expected=norm_squared, actual=actual
            )

    async def _apply(self, sealed: SealedStep) -> None:
        step, norm = sealed.seal.step, sealed.seal.gradient_norm
        if own := sealed.of_stage(self._stage):
            chunks = [await self._chunk(chunk) for chunk in own]
            await self._run(lambda: self._compute.apply(chunks, norm))
        else:
            await self._run(self._compute.begin_step)
        self._roots = await self._run(self._compute.roots)
        self.book.keep_applied(step, self.roots.state)
        self._applied = step
        self._leaves = {}
        self._tell(
            "seal_applied",
            step=step,
            state_root=self.roots.state,
            weights_root=self.roots.weights,
        )
        self._store.drop_parts(step)
        await self._checkpoint(step)

    async def _checkpoint(self, step: StepNumber) -> None:
        if not (step % self.book.record.spec.batch.checkpoint_every == 0 or self._is_last(step)):
            return
        await self._run(lambda: self._compute.save(self._checkpoints, step))
        kept = await self._run(lambda: self._compute.oldest_kept(self._checkpoints))
        self._store.drop_chunks(min(kept, self._all_applied))
        self._tell("checkpoint_stored", step=step)

    def _is_last(self, step: StepNumber) -> bool:
        return self.book.steps[step].seal.last

    async def _validation_of(self, step: StepNumber) -> int | None:
        due = step % self.book.record.spec.batch.validate_every == 0 or self._is_last(step)
        if not due or step != self._applied:
            return None
        if step not in self._validated:
            loss = await self._run(self._compute.validation_loss)
            self._validated = {step: loss}
            self._tell("validated", step=step, loss=loss)
        return self._validated[step]

    # ------------------------------------------------------------------------- what others fetch

    def part(self, commit: Digest, chunk: ChunkIndex) -> bytes:
        """One part of a gradient that is here; raises NotFound."""
        data = self._store.find_part(commit, chunk)
        if data is None:
            raise NotFound(f"no part {chunk} of {commit.hex()}")
        return data

    def chunk(self, step: StepNumber, stage: StageIndex, chunk: ChunkIndex) -> bytes:
        """One averaged chunk that is here; raises NotFound."""
        data = self._store.chunk(step, chunk) if stage == self._stage else None
        if data is None:
            raise NotFound(f"no chunk {chunk} of step {step}")
        return data
