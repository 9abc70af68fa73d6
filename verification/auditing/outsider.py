"""An auditor from outside a job: follows its history, replays what members serve, and reports.

It has no lease, no state and no stage. For each replay it downloads weights (`downloaded_weights`);
tensors and parts come from the members, by digests that sealed messages name.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeAlias

from typing_extensions import Buffer

from contracts.governance.checking import Begin
from contracts.terms.coins import Coins
from contracts.terms.errors import Conflict, InvariantBroken, Unavailable
from contracts.terms.history import Kept
from contracts.terms.ids import Digest, JobId, StageIndex, StepNumber
from contracts.terms.messages import AuditReport, JobSpec
from contracts.terms.signatures import Signed
from contracts.terms.typed_data import Domain
from training.averaging.slices import Slice
from training.journal import Journal
from training.tasks import end
from training.telling import Tell, telling_about
from training.transport.dispatch import Dispatcher
from training.worker.engine import Engine
from training.worker.peers import Peers
from training.worker.ports import HONEST, Behaviour, Replay, Replayer
from training.worker.run import Connection, Pause
from verification.auditing.downloaded_weights import DownloadedWeights
from verification.auditing.fetching import Fetcher
from verification.auditing.job import AuditedJob
from verification.auditing.loop import Auditing
from verification.auditing.outsider_book import OutsiderBook
from verification.auditing.replays import Replays, run_when_idle

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
    """A job, and how its history and its coins are read."""

    job: JobId
    domain: Domain  # where wallet signatures hold
    begin: Begin  # makes the fold of its draws
    items: Items  # its history, at the market
    coins: Coins  # as we read them from the chain


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
        book = OutsiderBook(journal, followed.job, followed.domain, followed.begin, followed.coins)
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
