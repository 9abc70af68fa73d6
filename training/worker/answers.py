"""What a worker answers: the coordinator leads the step, members fetch."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypeVar

from typing_extensions import Buffer

from contracts.terms.errors import Conflict, Forbidden, Malformed, Misbehaved, NotFound
from contracts.terms.history import decode_kept, encode_kept
from contracts.terms.ids import (
    ZERO_DIGEST,
    ChunkIndex,
    Digest,
    JobId,
    SessionKey,
    StageIndex,
    StepNumber,
)
from contracts.terms.messages import (
    AveragedChunk,
    AverageSet,
    GradCommit,
    Message,
    StepClose,
)
from contracts.terms.signatures import Signed, decode_signed, expect
from training.swarm.state import Part
from training.transport import calls
from training.transport.dispatch import Dispatcher, Tensors
from training.transport.wire import PING, AnyMethod
from training.worker.work import Work

M = TypeVar("M", bound=Message)

_OF_THE_COORDINATOR = tuple(
    method.name
    for method in (
        calls.MEASURE,
        calls.CLOSE_STEP,
        calls.FETCH_PARTS,
        calls.TAKE_PARTS,
        calls.SUM_CHUNKS,
        calls.HOLD_CHUNKS,
        calls.TAKE_CHUNK,
        calls.TAKE_SEAL,
    )
)


class Answers:
    """The methods that a worker serves."""

    def __init__(self, work: Work) -> None:
        self._work, self._at, self._peers = work, work.station, work.station.peers

    def dispatcher(self) -> Dispatcher:
        """A handler of all of them."""
        dispatcher = Dispatcher(authorize=self._authorize)
        dispatcher.on(calls.MEASURE, self.measure)
        dispatcher.on(calls.GET_TENSOR, self.get_tensor)
        dispatcher.on(calls.CLOSE_STEP, self.close_step)
        dispatcher.on(calls.FETCH_PARTS, self.fetch_parts)
        dispatcher.on(calls.TAKE_PARTS, self.take_parts)
        dispatcher.on(calls.SUM_CHUNKS, self.sum_chunks)
        dispatcher.on(calls.HOLD_CHUNKS, self.hold_chunks)
        dispatcher.on(calls.TAKE_CHUNK, self.take_chunk)
        dispatcher.on(calls.TAKE_SEAL, self.take_seal)
        dispatcher.on(calls.GET_PART, self.get_part)
        dispatcher.on(calls.GET_CHUNK, self.get_chunk)
        dispatcher.on(calls.GET_STATE, self.get_state)
        dispatcher.on(calls.GET_STATE_RANGE, self.get_state_range)
        dispatcher.on(calls.GET_WEIGHTS, self.get_weights)
        dispatcher.on(calls.GET_WEIGHTS_RANGE, self.get_weights_range)
        return dispatcher

    def _authorize(self, caller: SessionKey, method: AnyMethod) -> None:
        opening = self._at.book.record.opening
        if method.name in _OF_THE_COORDINATOR and caller != opening.session_key:
            raise Forbidden(f"{method.name} is for the coordinator")
        is_outside = caller in self._peers.outside
        if is_outside and method.name not in (*calls.FOR_AUDITORS, PING.name):
            raise Forbidden(f"{method.name} is not for outside auditors")

    def _need_job(self, job: JobId, stage: int | None = None) -> None:
        if job != self._at.book.record.job:
            raise Conflict("another job")
        if stage is not None and stage != self._at.stage:
            raise Conflict(f"this is stage {self._at.stage}, not {stage}")

    async def measure(
        self, _caller: SessionKey, request: calls.Measure, _tensors: Tensors
    ) -> tuple[calls.Done, Sequence[Buffer]]:
        """How long a reference unit takes is for the coordinator's clock to say."""
        self._need_job(request.job)
        _need_below(request.stage, self._at.batch.stages, "stages")
        await self._work.states.measure(request.stage, request.seed)
        return calls.Done(), ()

    async def get_tensor(
        self, _caller: SessionKey, request: calls.GetTensor, _tensors: Tensors
    ) -> tuple[calls.Done, Sequence[Buffer]]:
        """A boundary tensor that we sent, received or audited, and its header."""
        self._need_job(request.job, self._at.stage)
        is_sealed = request.step <= self._at.applied
        if not await self._work.serves("tensor", request.digest, is_sealed=is_sealed):
            raise NotFound(f"no tensor {request.digest.hex()} of step {request.step} is here")
        on_disk = self._at.on_disk
        read = partial(on_disk.get, StepNumber(request.step), request.digest)
        kept = await self._at.engine.run_io(read)
        return calls.Done(), [kept.header.encoded(), kept.data]

    # ------------------------------------------------------------------------------------- step

    async def close_step(
        self, _caller: SessionKey, request: calls.CloseStep, tensors: Tensors
    ) -> tuple[calls.StepCommitted, Sequence[Buffer]]:
        """GradCommits, or what is lacking."""
        self._peers.set_members(request.members)
        close = _first(tensors, StepClose)
        self._need_job(close.message.job)
        self._work.depart(close.message.step, "closed")
        answer = await self._work.commits.commit(close)
        if isinstance(answer, tuple):
            stage = self._at.stage
            lacks = tuple(calls.PlaceView(stage=stage, unit=unit) for unit in answer)
            return calls.StepCommitted(lacks=lacks, num_reports=0), ()
        reports = [signed.encoded() for signed in self._at.book.named_reports(answer)]
        pairs = [(own.signed.encoded(), encode_kept(own.leaves)) for own in answer]
        committed = calls.StepCommitted(lacks=(), num_reports=len(reports))
        return committed, [*reports, *(data for pair in pairs for data in pair)]

    async def fetch_parts(
        self, _caller: SessionKey, request: calls.FetchParts, tensors: Tensors
    ) -> tuple[calls.PartsHeld, Sequence[Buffer]]:
        """Which of these parts are here now."""
        self._peers.set_members(request.members)
        commits = self._commits(tensors)
        wanted = [(part.grad_commit, part.chunk) for part in request.parts]
        known = [(name, chunk) for name, chunk in wanted if _has(commits, name, chunk)]
        return _parts_held(await self._work.averages.hold(known, commits)), ()

    async def take_parts(
        self, _caller: SessionKey, request: calls.TakeParts, tensors: Tensors
    ) -> tuple[calls.PartsHeld, Sequence[Buffer]]:
        """Which of the relayed parts are what their GradCommits bound, and kept."""
        self._peers.set_members(request.members)
        if len(tensors) != request.num_commits + len(request.parts):
            raise Malformed(
                f"{len(tensors)} tensors for GradCommits and {len(request.parts)} parts"
            )
        commits = self._commits(tensors[: request.num_commits])
        data = tensors[request.num_commits :]
        names = ((part.grad_commit, part.chunk) for part in request.parts)
        given = [(name, each) for name, each in zip(names, data, strict=True)]
        known = [(name, each) for name, each in given if _has(commits, *name)]
        return _parts_held(await self._work.averages.take(known, commits)), ()

    async def sum_chunks(
        self, _caller: SessionKey, request: calls.SumChunks, tensors: Tensors
    ) -> tuple[calls.ChunksSummed, Sequence[Buffer]]:
        """AveragedChunks."""
        self._peers.set_members(request.members)
        average = _first(tensors, AverageSet)
        self._need_job(average.message.job)
        commits = self._commits(tensors[1:])
        num_chunks = len(self._at.chunking.summed_in(self._at.stage))
        for chunk in request.chunks:
            _need_below(chunk, num_chunks, "chunks")
        signed = await self._work.averages.average(average, commits, request.chunks)
        return calls.ChunksSummed(), [each.encoded() for each in signed]

    async def hold_chunks(
        self, _caller: SessionKey, request: calls.HoldChunks, tensors: Tensors
    ) -> tuple[calls.ChunksHeld, Sequence[Buffer]]:
        """Which of these means are here now."""
        self._peers.set_members(request.members)
        named, rest = tensors[: request.num_chunks], tensors[request.num_chunks :]
        chunks = [expect(decode_signed(bytes(each)), AveragedChunk) for each in named]
        for chunk in chunks:
            self._need_job(chunk.message.job)
            self._peers.verify(chunk)
        average = _first(rest, AverageSet) if rest else None
        held = await self._work.averages.hold_means(
            [chunk.message for chunk in chunks], average, self._commits(rest[1:])
        )
        names = tuple(calls.ChunkName(stage=each.stage, chunk=each.chunk) for each in held)
        return calls.ChunksHeld(chunks=names), ()

    async def take_chunk(
        self, _caller: SessionKey, request: calls.TakeChunk, tensors: Tensors
    ) -> tuple[calls.ChunksHeld, Sequence[Buffer]]:
        """The mean that was brought, if it is what was bound, and kept."""
        self._peers.set_members(request.members)
        if len(tensors) != 2:
            raise Malformed(f"{len(tensors)} tensors for an AveragedChunk and its bytes")
        signed = _first(tensors, AveragedChunk)
        self._need_job(signed.message.job)
        self._peers.verify(signed)
        mean = signed.message
        held = await self._work.averages.take_mean(mean, bytes(tensors[1]))
        names = (calls.ChunkName(stage=mean.stage, chunk=mean.chunk),) if held else ()
        return calls.ChunksHeld(chunks=names), ()

    def _commits(self, tensors: Tensors) -> dict[Digest, Signed[GradCommit]]:
        signed = [expect(decode_signed(bytes(each)), GradCommit) for each in tensors]
        for each in signed:
            self._peers.verify(each)
        return {each.message.digest(): each for each in signed}

    async def take_seal(
        self, _caller: SessionKey, request: calls.TakeSeal, tensors: Tensors
    ) -> tuple[calls.SealTaken, Sequence[Buffer]]:
        """A receipt, after the update."""
        self._peers.set_members(request.members)
        items = [decode_kept(bytes(tensor)) for tensor in tensors]
        try:
            step, root = await self._work.states.take_seal(items, StepNumber(request.all_applied))
        except Misbehaved as error:
            self._at.tell("seal_refused", step=self._at.step, reason=error.message)
            raise
        self._work.depart(step, "sealed")
        return calls.SealTaken(step=step, state_root=root), ()

    # ------------------------------------------------------------------------- what others fetch

    async def get_part(
        self, _caller: SessionKey, request: calls.GetPart, _tensors: Tensors
    ) -> tuple[calls.Done, Sequence[Buffer]]:
        """One part of a gradient."""
        name, chunk = request.part.grad_commit, request.part.chunk
        is_sealed = not self._at.store.has_part(self._at.step, name, chunk)
        if not await self._work.serves("part", name, is_sealed=is_sealed):
            raise NotFound(f"no part {chunk} of {name.hex()}")
        part = await self._work.averages.part(name, chunk)
        return calls.Done(), [part]

    async def get_chunk(
        self, _caller: SessionKey, request: calls.GetChunk, _tensors: Tensors
    ) -> tuple[calls.Done, Sequence[Buffer]]:
        """One averaged chunk."""
        step = StepNumber(request.step)
        return calls.Done(), [await self._work.averages.mean(step, request.stage, request.chunk)]

    async def get_state(
        self, _caller: SessionKey, request: calls.GetState, _tensors: Tensors
    ) -> tuple[calls.StateView, Sequence[Buffer]]:
        """Which checkpoint of a step we have."""
        self._need_job(request.job)
        return await self._work.states.view(request.stage, StepNumber(request.step)), ()

    async def get_state_range(
        self, _caller: SessionKey, request: calls.GetStateRange, _tensors: Tensors
    ) -> tuple[calls.Done, Sequence[Buffer]]:
        """Some bytes of it."""
        self._need_job(request.job)
        stage, step = StageIndex(request.stage), StepNumber(request.step)
        data = await self._work.states.range(stage, step, request.start, request.end)
        return calls.Done(), [data]

    async def get_weights(
        self, _caller: SessionKey, request: calls.GetWeights, _tensors: Tensors
    ) -> tuple[calls.WeightsView, Sequence[Buffer]]:
        """Which weights of a step are kept here."""
        self._need_job(request.job)
        await self._need_weights(request.step)
        return await self._work.keeping.view(request.stage, StepNumber(request.step)), ()

    async def get_weights_range(
        self, _caller: SessionKey, request: calls.GetWeightsRange, _tensors: Tensors
    ) -> tuple[calls.Done, Sequence[Buffer]]:
        """Some bytes of them."""
        self._need_job(request.job)
        await self._need_weights(request.step)
        stage, step = StageIndex(request.stage), StepNumber(request.step)
        data = await self._work.keeping.range(stage, step, request.start, request.end)
        return calls.Done(), [data]

    async def _need_weights(self, step: int) -> None:
        if not await self._work.serves("weights", ZERO_DIGEST, is_sealed=True):
            raise NotFound(f"no weights of step {step} are kept here")


def _need_below(number: int, bound: int, what: str) -> None:
    if number >= bound:
        raise Conflict(f"there are {bound} {what}, not one numbered {number}")


def _parts_held(parts: Sequence[Part]) -> calls.PartsHeld:
    names = tuple(calls.PartName(grad_commit=name, chunk=chunk) for name, chunk in parts)
    return calls.PartsHeld(parts=names)


def _first(tensors: Tensors, kind: type[M]) -> Signed[M]:
    if not tensors:
        raise Malformed(f"no {kind.__name__} came with the call")
    return expect(decode_signed(bytes(tensors[0])), kind)


def _has(commits: Mapping[Digest, Signed[GradCommit]], name: Digest, chunk: ChunkIndex) -> bool:
    return name in commits and chunk < len(commits[name].message.parts)
