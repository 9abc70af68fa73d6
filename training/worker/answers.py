"""What a worker answers: the coordinator leads the round, all fetch bytes by their digest."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from contracts.terms.errors import Conflict, Forbidden, Malformed, Misbehaved, NotFound
from contracts.terms.history import decode_kept, kept_digest
from contracts.terms.ids import (
    ZERO_DIGEST,
    Digest,
    SessionKey,
    StageIndex,
    StepNumber,
)
from contracts.terms.items import ranges_of
from contracts.terms.signatures import decode_signed, expect
from contracts.terms.work import RoundClosed
from training.transport import calls
from training.transport.dispatch import Dispatcher
from training.transport.wire import PING, Answered, AnyMethod, Question
from training.worker.work import Work

_OF_THE_COORDINATOR = tuple(
    method.name for method in (calls.MEASURE, calls.COMMIT, calls.REDUCE, calls.TAKE_SEAL)
)


class Answers:
    """The methods that a worker serves."""

    def __init__(self, work: Work) -> None:
        self._work, self._at, self._peers = work, work.station, work.station.peers

    def dispatcher(self) -> Dispatcher:
        """A handler of all of them."""
        dispatcher = Dispatcher(job=self._peers.job, authorize=self._authorize)
        dispatcher.on(calls.MEASURE, self.measure)
        dispatcher.on(calls.COMMIT, self.commit)
        dispatcher.on(calls.REDUCE, self.reduce)
        dispatcher.on(calls.TAKE_SEAL, self.take_seal)
        dispatcher.on(calls.GET_BYTES, self.get_bytes)
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

    # ----------------------------------------------------------------------------------- rounds

    async def measure(self, asked: Question[calls.Measure]) -> Answered[calls.Done]:
        """How long a reference item takes is for the coordinator's clock to say."""
        if asked.request.group not in self._at.layout.groups:
            raise Conflict(f"there is no group {asked.request.group}")
        await self._work.states.measure(StageIndex(asked.request.group), asked.request.seed)
        return calls.Done(), ()

    async def commit(self, asked: Question[calls.Commit]) -> Answered[calls.Committed]:
        """A claim with the reports that it names, or what is lacking."""
        self._work.depart(StepNumber(asked.request.round), "closed")
        answer = await self._work.claims.commit(asked.request)
        if isinstance(answer, tuple):
            return calls.Committed(lacks=ranges_of(answer), num_reports=0), ()
        reports = self._at.book.named_reports(answer.claim)
        pairs = [own.pair for own in (*reports, answer)]
        return calls.Committed(lacks=(), num_reports=len(reports)), [e for p in pairs for e in p]

    async def reduce(self, asked: Question[calls.Reduce]) -> Answered[calls.Done]:
        """The claim of a bucket."""
        if len(asked.tensors) != 1:
            raise Malformed("a RoundClosed is the one tensor")
        closed = expect(decode_signed(bytes(asked.tensors[0])), RoundClosed)
        own = await self._work.exchange.reduce(closed, (self._at.group, asked.request.bucket))
        return calls.Done(), [own.signed.encoded()]

    async def take_seal(self, asked: Question[calls.TakeSeal]) -> Answered[calls.SealTaken]:
        """A receipt, after the update."""
        items = [decode_kept(bytes(tensor)) for tensor in asked.tensors]
        given = {kept_digest(item): item for item in items}
        if asked.request.members:  # else they are as we were told before
            self._peers.set_members(asked.request.members)
        all_applied = StepNumber(asked.request.all_applied)
        try:
            taken = await self._work.states.take_seal(asked.request.names, given, all_applied)
        except Misbehaved as error:
            self._at.tell("seal_refused", step=self._at.round, reason=error.message)
            raise
        if taken is None:
            applied = self._at.applied
            return calls.SealTaken(round=applied, state_root=ZERO_DIGEST, lacks=True), ()
        round, root = taken
        self._work.depart(round, "sealed")
        return calls.SealTaken(round=round, state_root=root, lacks=False), ()

    # ------------------------------------------------------------------------- what others fetch

    async def get_bytes(self, asked: Question[calls.GetBytes]) -> Answered[calls.Done]:
        """Bytes that are here, to whoever knows their digest."""
        store, digest = self._at.store, Digest(asked.request.digest)
        is_sealed = store.newest_round(digest) <= self._at.applied
        if not await self._work.serves("bytes", digest, is_sealed=is_sealed):
            raise NotFound(f"{digest.hex()} is not here", digest=digest.hex())
        return calls.Done(), [await self._at.engine.run_io(partial(store.read, digest))]

    async def get_state(self, asked: Question[calls.GetFile]) -> Answered[calls.FileView]:
        """Which checkpoint of a round we have."""
        group, round = asked.request.group, StepNumber(asked.request.round)
        return await self._at.served.view(self._work.states.file(group, round)), ()

    async def get_state_range(self, asked: Question[calls.GetFileRange]) -> Answered[calls.Done]:
        """Some bytes of it."""
        return await self._range(self._work.states.file, asked.request)

    async def get_weights(self, asked: Question[calls.GetFile]) -> Answered[calls.FileView]:
        """Which weights of a round are kept here."""
        await self._need_weights(asked.request.round)
        group, round = asked.request.group, StepNumber(asked.request.round)
        return await self._work.keeping.view(group, round), ()

    async def get_weights_range(self, asked: Question[calls.GetFileRange]) -> Answered[calls.Done]:
        """Some bytes of them."""
        await self._need_weights(asked.request.round)
        return await self._range(self._work.keeping.file, asked.request)

    async def _range(
        self, file: Callable[[StageIndex, StepNumber], Path], wanted: calls.GetFileRange
    ) -> Answered[calls.Done]:
        path = file(wanted.group, StepNumber(wanted.round))
        return calls.Done(), [await self._at.served.range(path, wanted.start, wanted.end)]

    async def _need_weights(self, round: int) -> None:
        if not await self._work.serves("weights", ZERO_DIGEST, is_sealed=True):
            raise NotFound(f"no weights of round {round} are kept here")
