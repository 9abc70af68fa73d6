"""An auditor from outside a job: follows its history, replays what members serve, and reports.

It has no lease, no state and no stage. For each replay it downloads weights; tensors and parts come
from the members, by digests that sealed messages name. The job's history, as the market keeps it,
is read again at every start: it says all by itself, and costs milliseconds a step.

Invariants: what we have said is in the journal before it is sent, so that one draw gets one report;
nothing counts before the fold of `contracts.governance` has taken it, with every signature; a seal
counts once each beacon that it names is the one that we read from the chain, where it was anchored
with the seal that the history has.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeAlias

from typing_extensions import Buffer

from contracts.governance.checking import Begin
from contracts.governance.job import JobHistory, follow
from contracts.governance.record import JobRecord
from contracts.terms.beacons import Beacons, check_beacon
from contracts.terms.errors import Conflict, InvariantBroken, Unavailable
from contracts.terms.history import Kept
from contracts.terms.ids import Digest, JobId, PeerId, StageIndex, StepNumber
from contracts.terms.messages import AuditReport, JobSpec, Message, Seal, StepBeacon
from contracts.terms.signatures import Signed, decode_signed, expect
from contracts.terms.typed_data import Domain
from training.averaging.slices import Slice
from training.changes import Changes
from training.journal import Journal, Row
from training.tasks import end
from training.telling import Tell, telling_about
from training.transport.dispatch import Dispatcher
from training.worker.engine import Engine
from training.worker.peers import Peers
from training.worker.ports import HONEST, Behaviour, Replay, Replayer
from training.worker.run import Connection, Pause
from training.worker.sealed import SealedWork
from verification.auditing.job import AuditedJob, Fetcher
from verification.auditing.loop import Auditing
from verification.auditing.replays import DownloadedWeights, Replays, run_when_idle

# ------------------------------------------------------------------------ what it knows of the job

REPORT = "own_report"


class OutsiderBook:
    """Of one job; `changes` is marked with every seal."""

    def __init__(
        self, journal: Journal, job: JobId, domain: Domain, begin: Begin, beacons: Beacons
    ) -> None:
        self._journal, self._job, self._beacons = journal, job, beacons
        self._history = JobHistory(domain, begin)
        self._reports: dict[tuple[Digest, int], Signed[AuditReport]] = {}
        self._seals: dict[StepNumber, Digest] = {}
        self.work, self.changes, self.num_items = SealedWork(), Changes(), 0
        for row in journal.rows():
            self._note_report(expect(decode_signed(row.data), AuditReport))

    # ---------------------------------------------------------------------------------- history

    @property
    def record(self) -> JobRecord:
        """What the seals that we have read establish."""
        assert self._history.record is not None  # since `is_open`
        return self._history.record

    @property
    def parties(self) -> tuple[Signed[Message], ...]:
        """See `JobHistory.parties`."""
        return self._history.parties

    @property
    def is_open(self) -> bool:
        """Whether the job is opened, and its list of outside auditors is known."""
        record = self._history.record
        return record is not None and record.outside.digest() == record.opening.outside_auditors

    @property
    def is_over(self) -> bool:
        """Whether its last seal is known."""
        return self._history.record is not None and self._history.record.ended

    def lists(self, peer: PeerId) -> bool:
        """Whether the job may draw this key."""
        return peer in {each.peer for each in self.record.outside.auditors}

    async def take(self, item: Kept) -> None:
        """Read the next item of the history; its number is `num_items` then.

        Raises:
            Conflict: it is another job's. Unavailable: a beacon is not known here yet: again later.
            InvalidSeal: see `check_beacon`. Whatever `follow` raises.
        """
        after, before = follow(self._history, item), self._history
        if after.record is not None and after.record.job != self._job:
            raise Conflict("this is the history of another job")
        is_seal = isinstance(item, Signed) and isinstance(item.message, Seal)
        if is_seal:
            for signed in before.pending.values():
                if isinstance(signed.message, StepBeacon):
                    await self._check_beacon(signed.message)
        self._history = after
        self.num_items += 1
        if is_seal:
            self._note_seal(before)

    def _note_seal(self, under: JobHistory) -> None:
        self._seals[self.record.step] = self.record.previous
        self.work.note(under)
        oldest = self.record.checking.oldest_needed
        self.work.forget_before(StepNumber(self.record.step + 1) if oldest is None else oldest)
        self.changes.mark()

    async def _check_beacon(self, said: StepBeacon) -> None:
        check_beacon(said, await self._beacons.beacon_of(said.of), self._seals[said.of])

    # ---------------------------------------------------------------------------------- reports

    def own_report(self, subject: Digest, attempt: int) -> Signed[AuditReport] | None:
        """What we have said as this auditor of a draw."""
        return self._reports.get((subject, attempt))

    def keep_report(self, signed: Signed[AuditReport]) -> None:
        """Store a report of ours, before it is sent; raises Unavailable."""
        self._journal.append([Row(REPORT, signed.encoded())])
        self._note_report(signed)

    def _note_report(self, signed: Signed[AuditReport]) -> None:
        self._reports[signed.message.subject, signed.message.attempt] = signed


# ------------------------------------------------------------------------------------- the auditor

DIAL = 10.0  # seconds
LOOK_EVERY = 0.5

Items: TypeAlias = Callable[[int], AsyncIterator[Kept]]
"""The items of the job's history after so many, in order, as far as there are any now."""


class Arithmetic(Protocol):
    """What an auditor of any stage computes with."""

    def replayer(self, stage: StageIndex) -> Replayer:
        """Repeats peer-steps of a stage; may take seconds."""

    def most_bytes(self, stage: StageIndex) -> int:
        """That a file of the stage's weights can have."""

    def mean(self, parts: Sequence[Buffer], weights: Sequence[int], totals: Sequence[int]) -> Slice:
        """See `Compute.mean`."""


@dataclass(frozen=True)
class FollowedJob:
    """A job, and how its history and its beacons are read."""

    job: JobId
    domain: Domain  # where wallet signatures hold
    begin: Begin  # makes the fold of its draws
    items: Items  # its history, at the market
    beacons: Beacons  # as we read them from the chain


async def run_outside(
    folder: Path,
    followed: FollowedJob,
    connection: Connection,
    arithmetic: Callable[[JobSpec], Arithmetic],
    auditing: Auditing,
    tell: Tell,
    behaviour: Behaviour = HONEST,
) -> None:
    """Audit what a job draws for us until its last seal; start again where it was.

    Args:
        folder: Holds our reports and downloaded weights, made on first use.
        followed: The job.
        connection: Under the key that its list of outside auditors names.
        arithmetic: What we compute with.
        auditing: What is done about what is drawn for us.
        tell: The log.
        behaviour: What we say of what we did not see, if we lie.

    Raises:
        Conflict: the job does not list our key, or the history is of another job.
        BadSignature, Malformed, InvalidSeal: the history is none that can be.
        InvariantBroken: the audits have ended before the job; a bug of ours, and no silent one.
    """
    with Journal(folder / "journal.sqlite") as journal:
        book = OutsiderBook(
            journal, followed.job, followed.domain, followed.begin, followed.beacons
        )
        following = _Following(book, followed.items, tell, connection.pause)
        while not book.is_open:
            await following.look()
        if not book.lists(connection.session.peer):
            raise Conflict("the job does not list this key as an outside auditor")
        await connection.transport.serve(Dispatcher())
        engine = Engine()
        audited = OutsiderJob(book, folder, engine, connection, arithmetic, tell, behaviour)
        running = asyncio.create_task(auditing.run(audited))
        try:
            while not book.is_over:
                await following.look()
                _need_on_its_way(running)
        finally:
            await end([running])
            await engine.close()
    tell("finished", step=book.record.step)


def _need_on_its_way(auditing: asyncio.Task[None]) -> None:
    if auditing.done():
        raise InvariantBroken(f"auditing ended: {auditing.exception()!r}")


class _Following:
    """Reads a history as it grows."""

    def __init__(self, book: OutsiderBook, items: Items, tell: Tell, pause: Pause) -> None:
        self._book, self._items, self._tell, self._pause = book, items, tell, pause

    async def look(self) -> None:
        """Read what is new, and wait a moment."""
        try:
            async for item in self._items(self._book.num_items):
                await self._book.take(item)
        except Unavailable as error:
            self._tell("waits", code=error.code, reason=error.message)
        if not self._book.is_over:
            await self._pause(LOOK_EVERY)


class OutsiderJob(AuditedJob):
    """A job as an auditor from outside sees it: without lease, state or stage."""

    def __init__(
        self,
        book: OutsiderBook,
        folder: Path,
        engine: Engine,
        connection: Connection,
        arithmetic: Callable[[JobSpec], Arithmetic],
        tell: Tell,
        behaviour: Behaviour = HONEST,
    ) -> None:
        """Once the book is open."""
        spec, opening = book.record.spec, book.record.opening
        peers = Peers(connection.transport, spec, opening, tell)
        super().__init__(
            book,
            folder,
            peers,
            connection.session,
            fetcher=Fetcher(engine, peers, peers.fetch_part),
            changes=book.changes,
            behaviour=behaviour,
            tell=tell,
        )
        self._engine, self._connection = engine, connection
        self._arithmetic = arithmetic(spec)
        self._replays: dict[StageIndex, Replays] = {}

    def replays_in(self, stage: StageIndex) -> Replays:
        """Of a stage, on weights that its members hand out."""
        if stage not in self._replays:
            replayer = _OnDemand(lambda: self._arithmetic.replayer(stage))
            weights = DownloadedWeights(
                self._peers,
                stage,
                self.folder / f"stage-{stage}",
                engine=self._engine,
                replayer=replayer,
                most_bytes=self._arithmetic.most_bytes(stage),
                tell=self.tell,
                doer=lambda: self.fetcher.patience.doer,
            )
            tell = telling_about(self.tell, stage=stage)
            self._replays[stage] = Replays(self._engine, lambda: replayer, weights, tell)
        return self._replays[stage]

    async def _mean(
        self, parts: Sequence[Buffer], weights: Sequence[int], totals: Sequence[int]
    ) -> Slice:
        add = partial(self._arithmetic.mean, parts, weights, totals)
        return await run_when_idle(self._engine, add)

    async def say(
        self, agreeing: AuditReport, replay: Callable[[], Awaitable[AuditReport]]
    ) -> AuditReport:
        """See `AuditedJob.say`; asks who the members are first: those of before may be gone.

        Raises:
            Unavailable: the coordinator is not reached. Refused: it does not let us in.
        """
        await self._reach_coordinator()
        await self._peers.refresh()
        return await super().say(agreeing, replay)

    def _keep_report(self, signed: Signed[AuditReport]) -> None:
        super()._keep_report(signed)
        self.tell("report_kept", step=signed.message.step, subject=signed.message.subject)

    async def _reach_coordinator(self) -> None:
        key = self.record.opening.session_key
        session = self._connection.transport.sessions.get(key)
        if session is not None and not session.closed:
            return
        if (hint := await self._connection.locate()) is None:
            raise Unavailable("the coordinator's address is not known")
        await self._connection.transport.dial(key, [hint], deadline=DIAL)


class _OnDemand:
    """Satisfies `Replayer` with one that is made when it is first needed, where it may compute."""

    def __init__(self, make: Callable[[], Replayer]) -> None:
        self._make = make
        self._made: Replayer | None = None

    def need_weights(self, weights: Path, state_root: Digest) -> None:
        """See `Replayer.need_weights`."""
        self._replayer().need_weights(weights, state_root)

    def begin(self, step: StepNumber, weights: Path, state_root: Digest, seed: bytes) -> Replay:
        """See `Replayer.begin`."""
        return self._replayer().begin(step, weights, state_root, seed)

    def _replayer(self) -> Replayer:
        if self._made is None:
            self._made = self._make()
        return self._made
