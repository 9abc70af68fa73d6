"""What a worker answers: trainers ask for units, the coordinator leads the step, members fetch."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from typing_extensions import Buffer

from contracts.terms.errors import Conflict, Forbidden, Malformed, Misbehaved
from contracts.terms.history import decode_kept, encode_kept
from contracts.terms.ids import Digest, SessionKey, StepNumber
from contracts.terms.messages import AverageSet, GradCommit, Message, StepClose
from contracts.terms.signatures import Signed, decode_signed, expect
from training.telling import Tell
from training.transport import calls
from training.transport.dispatch import Dispatcher, Tensors
from training.transport.wire import AnyMethod
from training.worker.peers import Peers
from training.worker.work import Work

M = TypeVar("M", bound=Message)

_OF_THE_COORDINATOR = tuple(
    method.name
    for method in (calls.CLOSE_STEP, calls.FETCH_PARTS, calls.SUM_CHUNKS, calls.TAKE_SEAL)
)


class Answers:
    """The methods that a worker serves."""

    def __init__(self, work: Work, peers: Peers, tell: Tell) -> None:
        self._work, self._peers, self._tell = work, peers, tell

    def dispatcher(self) -> Dispatcher:
        """A handler of all of them."""
        dispatcher = Dispatcher(authorize=self._authorize)
        dispatcher.on(calls.COMPUTE, self.compute)
        dispatcher.on(calls.CLOSE_STEP, self.close_step)
        dispatcher.on(calls.FETCH_PARTS, self.fetch_parts)
        dispatcher.on(calls.SUM_CHUNKS, self.sum_chunks)
        dispatcher.on(calls.TAKE_SEAL, self.take_seal)
        dispatcher.on(calls.GET_PART, self.get_part)
        dispatcher.on(calls.GET_CHUNK, self.get_chunk)
        return dispatcher

    def _authorize(self, caller: SessionKey, method: AnyMethod) -> None:
        opening = self._work.book.record.opening
        if method.name in _OF_THE_COORDINATOR and caller != opening.session_key:
            raise Forbidden(f"{method.name} is for the coordinator")
        if method.name == calls.COMPUTE.name and caller not in opening.trainers:
            raise Forbidden(f"{method.name} is for this job's trainers")

    async def compute(
        self, _caller: SessionKey, request: calls.Compute, _tensors: Tensors
    ) -> tuple[calls.Computed, Sequence[Buffer]]:
        """Forward and backward of one unit."""
        if request.job != self._work.book.record.job or request.stage != self._work.stage:
            raise Conflict("another job, or another stage")
        batch = self._work.book.record.spec.batch
        if request.unit >= batch.units_per_step:
            raise Conflict(f"a step has {batch.units_per_step} units")
        leaf = await self._work.unit(StepNumber(request.step), request.unit)
        return calls.Computed(loss=leaf.loss), ()

    async def close_step(
        self, _caller: SessionKey, request: calls.CloseStep, tensors: Tensors
    ) -> tuple[calls.StepCommitted, Sequence[Buffer]]:
        """GradCommits, or what is lacking."""
        self._peers.set_members(request.members)
        answer = await self._work.commit(_first(tensors, StepClose))
        if isinstance(answer, tuple):
            stage = self._work.stage
            lacks = tuple(calls.PlaceView(stage=stage, unit=unit) for unit in answer)
            return calls.StepCommitted(lacks=lacks), ()
        pairs = [(own.signed.encoded(), encode_kept(own.leaves)) for own in answer]
        return calls.StepCommitted(lacks=()), [data for pair in pairs for data in pair]

    async def fetch_parts(
        self, _caller: SessionKey, request: calls.FetchParts, tensors: Tensors
    ) -> tuple[calls.PartsHeld, Sequence[Buffer]]:
        """Which of these parts are here now."""
        self._peers.set_members(request.members)
        commits = self._commits(tensors)
        wanted = [(part.grad_commit, part.chunk) for part in request.parts]
        known = [(name, chunk) for name, chunk in wanted if _has(commits, name, chunk)]
        held = await self._work.hold(known, commits)
        names = tuple(calls.PartName(grad_commit=name, chunk=chunk) for name, chunk in held)
        return calls.PartsHeld(parts=names), ()

    async def sum_chunks(
        self, _caller: SessionKey, request: calls.SumChunks, tensors: Tensors
    ) -> tuple[calls.ChunksSummed, Sequence[Buffer]]:
        """AveragedChunks."""
        self._peers.set_members(request.members)
        average = _first(tensors, AverageSet)
        commits = self._commits(tensors[1:])
        if any(chunk >= self._work.book.record.spec.batch.chunks for chunk in request.chunks):
            raise Malformed("no such chunk")
        signed = await self._work.average(average, commits, request.chunks)
        return calls.ChunksSummed(), [each.encoded() for each in signed]

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
            step, loss = await self._work.take_seal(items, StepNumber(request.all_applied))
        except Misbehaved as error:
            self._tell("seal_refused", step=self._work.step, reason=error.message)
            raise
        root = self._work.roots.state
        return calls.SealTaken(step=step, state_root=root, validation_loss=loss), ()

    async def get_part(
        self, _caller: SessionKey, request: calls.GetPart, _tensors: Tensors
    ) -> tuple[calls.Done, Sequence[Buffer]]:
        """One part of a gradient."""
        return calls.Done(), [self._work.part(request.part.grad_commit, request.part.chunk)]

    async def get_chunk(
        self, _caller: SessionKey, request: calls.GetChunk, _tensors: Tensors
    ) -> tuple[calls.Done, Sequence[Buffer]]:
        """One averaged chunk."""
        data = self._work.chunk(StepNumber(request.step), request.stage, request.chunk)
        return calls.Done(), [data]


def _first(tensors: Tensors, kind: type[M]) -> Signed[M]:
    if not tensors:
        raise Malformed(f"no {kind.__name__} came with the call")
    return expect(decode_signed(bytes(tensors[0])), kind)


def _has(commits: Mapping[Digest, Signed[GradCommit]], name: Digest, chunk: int) -> bool:
    return name in commits and chunk < len(commits[name].message.parts)
