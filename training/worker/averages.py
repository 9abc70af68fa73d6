"""Parts of gradients and their means: what this peer holds, sums, and hands out.

Invariants: nothing is kept whose digest and norm are not those that its owner or a seal bound; a
mean is on disk and in the journal before anybody hears of it; one mean a chunk and step.
"""

from collections.abc import Iterable, Mapping, Sequence

from contracts.terms.errors import (
    Equivocation,
    Malformed,
    NotFound,
    TallystickError,
    Unavailable,
    WrongBytes,
)
from contracts.terms.ids import ChunkIndex, Digest, StageIndex, StepNumber
from contracts.terms.messages import AveragedChunk, AverageSet, GradCommit, Message
from contracts.terms.signatures import Signed, verify_session
from training.averaging.slices import Slice, in_peer_order, need_digest, slice_digest
from training.swarm.state import Part
from training.telling import Span
from training.worker.station import Station
from training.worker.turns import Rank

Commits = Mapping[Digest, Signed[GradCommit]]


class Averages:
    """Parts and means of the step in work, and means of sealed steps."""

    def __init__(self, station: Station) -> None:
        self._at = station

    # ------------------------------------------------------------------------------------ parts

    async def hold(self, parts: Iterable[Part], commits: Commits) -> list[Part]:
        """Fetch parts of others; returns those that are here now."""
        held, span = [], Span()
        for name, chunk in parts:
            try:
                await self._part(commits[name].message, chunk)
            except TallystickError as error:  # the coordinator sees which are not here
                self._tell_lack(chunk, error)
            else:
                held.append((name, chunk))
        about = {"step": self._at.step, "stage": self._at.stage, "parts": len(held)}
        self._at.tell("parts_fetched", **about, **span.lap())
        return held

    async def take(self, parts: Sequence[tuple[Part, memoryview]], commits: Commits) -> list[Part]:
        """Keep parts that the coordinator relays; returns those that are what was bound."""
        held = []
        for (name, chunk), data in parts:
            try:
                await self._keep_part(commits[name].message, chunk, bytes(data))
            except TallystickError as error:
                self._tell_lack(chunk, error)
            else:
                held.append((name, chunk))
        return held

    def _tell_lack(self, chunk: ChunkIndex, error: TallystickError) -> None:
        self._at.tell(
            "part_not_fetched",
            step=self._at.step,
            stage=self._at.stage,
            chunk=chunk,
            code=error.code,
            reason=error.message,
        )

    async def _part(self, commit: GradCommit, chunk: ChunkIndex) -> bytes:
        data = self._at.store.part(commit.step, commit.digest(), chunk)
        if data is not None and self._digest(data) == commit.parts[chunk].digest:
            return data
        data = await self._at.peers.fetch_part(commit, chunk)
        await self._keep_part(commit, chunk, data)
        return data

    async def _keep_part(self, commit: GradCommit, chunk: ChunkIndex, data: bytes) -> None:
        self._need_digest(data, commit.parts[chunk].digest)
        await self._need_norm(data, commit.parts[chunk].norm_squared)
        self._at.store.put_part(commit.step, commit.digest(), chunk, data)
        about = {"step": commit.step, "stage": commit.stage, "chunk": chunk}
        self._at.tell("part_stored", peer=commit.peer, **about)

    # ------------------------------------------------------------------------------------ means

    async def average(
        self, average: Signed[AverageSet], commits: Commits, chunks: Iterable[ChunkIndex]
    ) -> list[Signed[AveragedChunk]]:
        """Sum these chunks over the members of the AverageSet, and bind ourselves to the means.

        Raises:
            BadSignature: not the coordinator's. Unavailable: a part cannot be fetched.
            Equivocation: this chunk was averaged over another AverageSet.
        """
        verify_session(average, self._at.book.record.opening.session_key)
        message, wanted = average.message, tuple(chunks)

        async def sum_all() -> list[Signed[AveragedChunk]]:
            self._at.need_step(message.step)
            return [await self._average(message, commits, chunk) for chunk in wanted]

        return await self._at.engine.at(Rank.STEP, sum_all)

    async def _average(
        self, average: AverageSet, commits: Commits, chunk: ChunkIndex
    ) -> Signed[AveragedChunk]:
        if known := self._at.book.chunks.get(chunk):
            if known.message.average_set != average.digest():
                raise Equivocation(f"two AverageSets of step {average.step}")
            return known
        messages = {name: signed.message for name, signed in commits.items()}
        mean = await self._sum(average, messages, chunk)
        self._at.store.put_chunk(average.step, chunk, mean.data)
        signed = self._at.session.sign(self._averaged(average, chunk, mean))
        self._at.book.keep_chunk(signed)
        self._at.tell("chunk_stored", step=average.step, stage=self._at.stage, chunk=chunk)
        return signed

    def _averaged(self, average: AverageSet, chunk: ChunkIndex, mean: Slice) -> AveragedChunk:
        return AveragedChunk(
            job=average.job,
            step=average.step,
            stage=self._at.stage,
            peer=self._at.peer,
            average_set=average.digest(),
            chunk=chunk,
            chunk_digest=mean.digest,
            norm_squared=mean.norm_squared,
        )

    async def _sum(
        self, average: AverageSet, commits: Mapping[Digest, GradCommit], chunk: ChunkIndex
    ) -> Slice:
        weights = {member.grad_commit: member.weight for member in average.members}
        if not weights.keys() <= commits.keys():
            raise Malformed("an AverageSet came without all of its GradCommits")
        ordered = in_peer_order((commits[name] for name in weights), self._at.stage)
        parts = [await self._part(commit, chunk) for commit in ordered]
        own = [weights[commit.digest()] for commit in ordered]
        return await self._at.engine.run(lambda: self._at.compute.mean(parts, own))

    async def hold_sealed(self, messages: Sequence[Message]) -> None:
        """Have the means that a seal over `messages` names for our stage, before it is stored.

        Raises:
            Unavailable: one of them is nowhere, and cannot be summed again.
        """
        for chunk in messages:
            if isinstance(chunk, AveragedChunk) and chunk.stage == self._at.stage:
                await self._mean_or_sum(chunk, messages)

    async def _mean_or_sum(self, chunk: AveragedChunk, messages: Sequence[Message]) -> None:
        """A mean, summed again from its parts if who summed it took it along."""
        try:
            await self.sealed(chunk)
        except Unavailable:
            mean = await self._sum(
                next(message for message in messages if isinstance(message, AverageSet)),
                {m.digest(): m for m in messages if isinstance(m, GradCommit)},
                chunk.chunk,
            )
            self._need_digest(mean.data, chunk.chunk_digest)
            self._at.store.put_chunk(chunk.step, chunk.chunk, mean.data)
            self._at.tell(
                "chunk_summed_again", step=chunk.step, stage=chunk.stage, chunk=chunk.chunk
            )

    def has(self, chunk: AveragedChunk) -> bool:
        """Whether a mean that a seal names is on our disk."""
        data = self._at.store.chunk(chunk.step, chunk.chunk)
        return data is not None and self._digest(data) == chunk.chunk_digest

    async def sealed(self, chunk: AveragedChunk) -> bytes:
        """A mean that a seal names, from our disk or from whoever has it; raises Unavailable."""
        data = self._at.store.chunk(chunk.step, chunk.chunk)
        if data is not None and self._digest(data) == chunk.chunk_digest:
            return data
        data = await self._at.peers.fetch_chunk(chunk)
        await self._need_norm(data, chunk.norm_squared)
        self._at.store.put_chunk(chunk.step, chunk.chunk, data)
        return data

    # ----------------------------------------------------------------------------------- checks

    def _digest(self, data: bytes) -> Digest:
        return slice_digest(data, self._at.rules.gradient_codec)

    def _need_digest(self, data: bytes, expected: Digest) -> None:
        need_digest(data, expected, self._at.rules.gradient_codec)

    async def _need_norm(self, data: bytes, norm_squared: int) -> None:
        """Refuse what is not finite, or as long as was said: it would decide the clip of all.

        Raises:
            NotFinite: inf or nan. WrongBytes: another norm.
        """
        actual = (
            await self._at.engine.run(lambda: self._at.compute.mean([data], [1]))
        ).norm_squared
        if actual != norm_squared:
            raise WrongBytes(
                "a chunk is not as long as was said", expected=norm_squared, actual=actual
            )

    # ------------------------------------------------------------------------- what others fetch

    def part(self, commit: Digest, chunk: ChunkIndex) -> bytes:
        """One part of a gradient that is here; raises NotFound."""
        data = self._at.store.find_part(commit, chunk)
        if data is None:
            raise NotFound(f"no part {chunk} of {commit.hex()}")
        return data

    def mean(self, step: StepNumber, stage: StageIndex, chunk: ChunkIndex) -> bytes:
        """One mean that is here; raises NotFound."""
        data = self._at.store.chunk(step, chunk) if stage == self._at.stage else None
        if data is None:
            raise NotFound(f"no chunk {chunk} of step {step}")
        return data
