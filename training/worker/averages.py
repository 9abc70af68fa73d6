"""Parts of gradients and their means: what this peer holds, sums, and hands out.

Invariants: nothing is kept whose digest and norm are not those that its owner or a seal bound, but
that a part which an audit wants is kept by its digest, whatever it spells; a mean is on disk and in
the journal before anybody hears of it; one mean a chunk and step; the order of a sum is that of the
peers, whoever's part came first. Of what is fetched a few at a time are on their way, and fewer
from one peer, so that a silent one does not keep us from the others.
"""

import asyncio
from collections import defaultdict
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

from contracts.governance.rounds import applied_chunks
from contracts.terms import errors
from contracts.terms.chunks import Chunk, Chunking
from contracts.terms.ids import ChunkIndex, Digest, PeerId, StageIndex, StepNumber
from contracts.terms.messages import AveragedChunk, AverageSet, GradCommit, Message
from contracts.terms.signatures import Signed, verify_session
from training.averaging.slices import Slice, in_peer_order, need_digest, need_elements, slice_digest
from training.swarm.state import Part
from training.tasks import all_of
from training.telling import Rarely, Span
from training.worker.patience import Patience
from training.worker.ports import HONEST, Behaviour
from training.worker.station import Station
from training.worker.turns import Rank

Commits = Mapping[Digest, Signed[GradCommit]]

FETCHES, FETCHES_OF_ONE = 4, 2  # on their way to us at once, in all and from one peer


class Averages:
    """Parts and means of the step in work, and means of sealed steps."""

    def __init__(self, station: Station, behaviour: Behaviour = HONEST) -> None:
        self._at, self._behaviour = station, behaviour
        self._tell_rarely = Rarely(station.tell)
        self._lanes = asyncio.Semaphore(FETCHES)
        self._lanes_of: dict[PeerId, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(FETCHES_OF_ONE)
        )

    @asynccontextmanager
    async def _lane(self, owner: PeerId) -> AsyncIterator[None]:
        async with self._lanes_of[owner], self._lanes:
            yield

    # ------------------------------------------------------------------------------------ parts

    async def hold(self, parts: Iterable[Part], commits: Commits) -> list[Part]:
        """Fetch parts of others; returns those that are here now.

        In half of the time that the exchange has: then the coordinator can still bring the rest.
        """
        wanted, held, span = list(parts), set[Part](), Span()

        async def fetch(part: Part) -> None:
            name, chunk = part
            try:
                await self.bound_part(commits[name].message, chunk)
                held.add(part)
            except errors.TallystickError as error:  # the coordinator sees which are not here
                self._tell_lack(chunk, error)

        with suppress(TimeoutError):
            async with asyncio.timeout(self._at.rules.exchange_timeout / 1000 / 2):
                await all_of(map(fetch, wanted))
        about = {"step": self._at.step, "stage": self._at.stage, "parts": len(held)}
        self._at.tell("parts_fetched", **about, **span.take_timings())
        return [part for part in wanted if part in held]

    async def take(self, parts: Sequence[tuple[Part, memoryview]], commits: Commits) -> list[Part]:
        """Keep parts that the coordinator relays; returns those that are what was bound."""
        held = []
        for (name, chunk), data in parts:
            commit, part = commits[name].message, bytes(data)
            check = partial(self._need_digest, part, commit.parts[chunk].digest)
            try:
                await self._at.engine.run_io(check)
                await self._keep_part(commit, chunk, part)
            except errors.TallystickError as error:
                self._tell_lack(chunk, error)
            else:
                held.append((name, chunk))
        return held

    def _tell_lack(self, chunk: ChunkIndex, error: errors.TallystickError) -> None:
        self._tell_rarely(
            "part_not_fetched",
            step=self._at.step,
            stage=self._at.stage,
            chunk=chunk,
            code=error.code,
            reason=error.message,
        )

    async def bound_part(self, commit: GradCommit, chunk: ChunkIndex) -> bytes:
        """A part that a GradCommit has bound, from our disk or as `Peers.fetch_part`.

        Raises:
            Unavailable: nobody who is reached has it. Malformed, NotFinite, WrongBytes: see
                `_need_norm`.
        """
        return await self._part(commit, chunk, self._keep_part, None)

    async def claimed_part(
        self, commit: GradCommit, chunk: ChunkIndex, patience: Patience | None = None
    ) -> bytes:
        """A part of a sealed GradCommit for an audit: its digest is bound, so it counts as it is.

        It is kept, too: whoever bound what nobody can use will not show it to the next auditor.

        Raises:
            Unavailable: nobody who is reached has it.
        """
        return await self._part(commit, chunk, self._put_part, patience)

    async def _part(
        self,
        commit: GradCommit,
        chunk: ChunkIndex,
        keep: Callable[[GradCommit, ChunkIndex, bytes], Awaitable[None]],
        patience: Patience | None,
    ) -> bytes:
        read = partial(self._at.store.part, commit.step, commit.digest(), chunk)
        if (data := await self._stored(read, commit.parts[chunk].digest)) is None:
            async with self._lane(commit.peer):
                data = await self._at.peers.fetch_part(commit, chunk, patience)
                await keep(commit, chunk, data)
        return data

    async def _stored(self, read: Callable[[], bytes | None], digest: Digest) -> bytes | None:
        """What is on our disk, if it is what was bound."""

        def checked() -> bytes | None:
            data = read()
            with suppress(errors.Malformed):  # a power cut has left half of it
                codec = self._at.rules.gradient_codec
                return data if data is not None and slice_digest(data, codec) == digest else None
            return None

        return await self._at.engine.run_io(checked)

    async def _keep_part(self, commit: GradCommit, chunk: ChunkIndex, data: bytes) -> None:
        """Keep a part that has the right digest; raises as `_need_norm`."""
        self._need_elements(data, chunk)
        await self._need_norm(data, commit.parts[chunk].norm_squared)
        await self._put_part(commit, chunk, data)

    async def _put_part(self, commit: GradCommit, chunk: ChunkIndex, data: bytes) -> None:
        put = partial(self._at.store.put_part, commit.step, commit.digest(), chunk, data)
        await self._at.engine.run_io(put)
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
                raise errors.Equivocation(f"two AverageSets of step {average.step}")
            return known
        messages = {name: signed.message for name, signed in commits.items()}
        mean = await self._sum(average, messages, (self._at.stage, chunk), self._behaviour)
        bind = partial(self._at.store.bind_chunk, average.step, chunk, mean.data)
        await self._at.engine.run_io(bind)
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
        self,
        average: AverageSet,
        commits: Mapping[Digest, GradCommit],
        chunk: Chunk,
        behaviour: Behaviour = HONEST,
    ) -> Slice:
        """The mean of each stage that has parts in a chunk, added up in the order of stages."""
        terms, (_, number) = terms_of(self._at.chunking, average, commits, chunk), chunk
        parts = await all_of(self.bound_part(term.commit, number) for term in terms)
        weights, totals = [term.weight for term in terms], [term.total for term in terms]
        add = partial(behaviour.mean, self._at.compute, average.step, parts, weights, totals)
        return await self._at.engine.run(add)

    async def hold_sealed(self, messages: Sequence[Message]) -> None:
        """Have the means that a seal over `messages` names for our stage, before it is stored.

        Raises:
            Unavailable: one of them is nowhere, and cannot be summed again.
        """
        means = applied_chunks(self._at.book.record.spec, messages)
        names = self._at.chunking.of_stage(self._at.stage)
        own = [chunk for chunk in means if (chunk.stage, chunk.chunk) in names]
        average = next((each for each in messages if isinstance(each, AverageSet)), None)
        commits = {each.digest(): each for each in messages if isinstance(each, GradCommit)}
        await all_of(self._mean_or_sum(chunk, average, commits) for chunk in own)

    async def hold_means(
        self,
        chunks: Sequence[AveragedChunk],
        average: Signed[AverageSet] | None,
        commits: Commits,
    ) -> list[AveragedChunk]:
        """Have means before a seal names them; returns those that are here now.

        `average` and `commits` come where a mean has to be summed again, as nobody has it.

        Raises:
            BadSignature: the AverageSet is not the coordinator's. Conflict: not of this step.
        """
        if average is not None:
            verify_session(average, self._at.book.record.opening.session_key)
        for chunk in chunks:
            self._at.need_step(chunk.step)
        summed = None if average is None else average.message
        messages = {name: signed.message for name, signed in commits.items()}
        held: list[AveragedChunk] = []

        async def hold(chunk: AveragedChunk) -> None:
            try:
                await self._mean_or_sum(chunk, summed, messages)
                held.append(chunk)
            except errors.TallystickError as error:  # the coordinator sees which are not here
                self._tell_lack(chunk.chunk, error)

        names = self._at.chunking.of_stage(self._at.stage)
        own = [chunk for chunk in chunks if (chunk.stage, chunk.chunk) in names]
        with suppress(TimeoutError):
            async with asyncio.timeout(self._at.rules.exchange_timeout / 1000 / 4):
                await all_of(map(hold, own))
        return held

    async def take_mean(self, chunk: AveragedChunk, data: bytes) -> bool:
        """Keep a mean that the coordinator brings; whether we apply it, and it is what was bound.

        Raises:
            Conflict: not of this step.
        """
        self._at.need_step(chunk.step)
        if (chunk.stage, chunk.chunk) not in self._at.chunking.of_stage(self._at.stage):
            return False
        try:
            check = partial(self._need_digest, data, chunk.chunk_digest)
            await self._at.engine.run_io(check)
            await self._need_norm(data, chunk.norm_squared)
            await self._keep_mean(chunk, data)
        except errors.TallystickError as error:
            self._tell_lack(chunk.chunk, error)
            return False
        return True

    async def _mean_or_sum(
        self,
        chunk: AveragedChunk,
        average: AverageSet | None,
        commits: Mapping[Digest, GradCommit],
    ) -> None:
        """A mean, summed again from its parts if who summed it took it along."""
        try:
            await self.sealed(chunk)
        except errors.Unavailable:
            if average is None:
                raise
            mean = await self._sum(average, commits, (chunk.stage, chunk.chunk))
            check = partial(self._need_digest, mean.data, chunk.chunk_digest)
            await self._at.engine.run_io(check)
            await self._keep_mean(chunk, mean.data)
            self._at.tell(
                "chunk_summed_again", step=chunk.step, stage=chunk.stage, chunk=chunk.chunk
            )

    async def _keep_mean(self, chunk: AveragedChunk, data: bytes) -> None:
        self._need_elements(data, chunk.chunk)  # nobody can apply another number
        put = partial(self._at.store.put_chunk, chunk.step, chunk.chunk, data)
        await self._at.engine.run_io(put)

    async def _stored_mean(self, chunk: AveragedChunk) -> bytes | None:
        read = partial(self._at.store.chunk, chunk.step, chunk.chunk)
        return await self._stored(read, chunk.chunk_digest)

    async def has(self, chunk: AveragedChunk) -> bool:
        """Whether a mean that a seal names is on our disk."""
        return await self._stored_mean(chunk) is not None

    async def sealed(self, chunk: AveragedChunk) -> bytes:
        """A mean that a seal names, from our disk or from whoever has it; raises Unavailable."""
        if (data := await self._stored_mean(chunk)) is None:
            async with self._lane(chunk.peer):
                data = await self._at.peers.fetch_chunk(chunk)
                await self._need_norm(data, chunk.norm_squared)
                await self._keep_mean(chunk, data)
        return data

    # ----------------------------------------------------------------------------------- checks

    def _need_digest(self, data: bytes, expected: Digest) -> None:
        need_digest(data, expected, self._at.rules.gradient_codec)

    def _need_elements(self, data: bytes, chunk: ChunkIndex) -> None:
        expected = self._at.compute.num_elements(chunk)
        need_elements(data, expected, self._at.rules.gradient_codec)

    async def _need_norm(self, data: bytes, norm_squared: int) -> None:
        """Refuse what is not finite, or as long as was said: it would decide the clip of all.

        Raises:
            NotFinite: inf or nan. WrongBytes: another norm.
        """
        actual = (
            await self._at.engine.run(lambda: self._at.compute.mean([data], [1]))
        ).norm_squared
        if actual != norm_squared:
            raise errors.WrongBytes(
                "a chunk is not as long as was said", expected=norm_squared, actual=actual
            )

    # ------------------------------------------------------------------------- what others fetch

    async def part(self, commit: Digest, chunk: ChunkIndex) -> bytes:
        """One part of a gradient that is here; raises NotFound."""
        data = await self._at.engine.run_io(partial(self._at.store.find_part, commit, chunk))
        if data is None:
            raise errors.NotFound(f"no part {chunk} of {commit.hex()}")
        return data

    async def mean(self, step: StepNumber, stage: StageIndex, chunk: ChunkIndex) -> bytes:
        """One mean that is here; raises NotFound."""
        data = None
        if (stage, chunk) in self._at.chunking.of_stage(self._at.stage):
            data = await self._at.engine.run_io(partial(self._at.store.chunk, step, chunk))
        if data is None:
            raise errors.NotFound(f"no chunk {chunk} of step {step}")
        return data


@dataclass(frozen=True)
class Term:
    """One part of a mean: weight / total of it."""

    commit: GradCommit
    weight: int
    total: int


def terms_of(
    chunking: Chunking,
    average: AverageSet,
    commits: Mapping[Digest, GradCommit],
    chunk: Chunk,
) -> list[Term]:
    """What the mean of a chunk is made of, in the order in which it is added up.

    Raises:
        Malformed: `commits` lacks a member, or a member has no such part.
    """
    weights = {member.grad_commit: member.weight for member in average.members}
    if not weights.keys() <= commits.keys():
        raise errors.Malformed("an AverageSet came without all of its GradCommits")
    members, (_, number) = [commits[name] for name in weights], chunk
    terms = []
    for mates in (in_peer_order(members, stage) for stage in chunking.stages_of(chunk)):
        own = [weights[commit.digest()] for commit in mates]
        terms += [Term(*each, sum(own)) for each in zip(mates, own, strict=True)]
    if any(number >= len(term.commit.parts) for term in terms):
        raise errors.Malformed(f"a GradCommit without part {number}")
    return terms
