"""An auditor from outside a job: it follows the history, audits while it lasts, downloads weights.

It has no lease, no state and no stage. The job's history, as the market keeps it, is read again at
every start: it says all by itself, and costs milliseconds a step. Weights cost 4 bytes a parameter
of traffic and of disk (docs/protocol.md 7).

Invariants: nothing counts before the fold of `contracts.governance` has taken it, with every
signature; a seal counts once each beacon that it names is the one that we read from the chain,
where it was anchored with the seal that the history has; downloaded weights are used only after
their root was computed and lies under the base that a sealed claim names; one file a group stays,
the last one.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from typing_extensions import Buffer

from contracts.governance.checking import Begin
from contracts.governance.job import JobHistory, follow
from contracts.governance.record import JobRecord
from contracts.terms.beacons import Beacons, check_beacon
from contracts.terms.errors import Conflict, InvariantBroken, Misbehaved, Refused, Unavailable
from contracts.terms.history import Kept
from contracts.terms.ids import Digest, JobId, PeerId, StageIndex, StepNumber
from contracts.terms.messages import JobSpec, Message, Seal, StepBeacon
from contracts.terms.signatures import Signed
from contracts.terms.typed_data import Domain
from contracts.terms.work import Leaf, Sort, WorkClaim
from training.changes import Changes
from training.tasks import end
from training.telling import Tell, telling_about
from training.transport.dispatch import Dispatcher
from training.worker.engine import Engine
from training.worker.files import SharedFile, take_file
from training.worker.patience import Patience
from training.worker.peers import Peers
from training.worker.ports import HONEST, Arithmetic, Behaviour
from training.worker.run import Connection
from training.worker.sealed import SealedWork
from verification.auditing.auditor import most_weight_bytes
from verification.auditing.host import Host
from verification.auditing.program import Auditing, Pause
from verification.auditing.replays import Meter

LOOK_EVERY = 0.5

Items: TypeAlias = Callable[[int], AsyncIterator[Kept]]
"""The items of the job's history after so many, in order, as far as there are any now."""


@dataclass(frozen=True)
class FollowedJob:
    """A job, and how its history and its beacons are read."""

    job: JobId
    domain: Domain  # where wallet signatures hold
    begin: Begin  # makes the fold of its draws
    items: Items  # its history, at the market
    beacons: Beacons  # as we read them from the chain


class Followed:
    """What the history of a job has said so far; `changes` is marked with every seal."""

    def __init__(self, job: FollowedJob) -> None:
        self._job, self._history = job, JobHistory(job.domain, job.begin)
        self._seals: dict[StepNumber, Digest] = {}
        self.work, self.changes, self.num_items = SealedWork(), Changes(), 0

    @property
    def record(self) -> JobRecord:
        """See `Host.record`."""
        assert self._history.record is not None  # since `is_open`
        return self._history.record

    @property
    def parties(self) -> tuple[Signed[Message], ...]:
        """See `Host.parties`."""
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

    async def look(self, tell: Tell) -> None:
        """Read what is new.

        Raises:
            BadSignature, Malformed, Conflict, InvalidSeal: the history is none of this job.
        """
        try:
            async for item in self._job.items(self.num_items):
                await self.take(item)
        except Unavailable as error:
            tell("waits", code=error.code, reason=error.message)

    async def take(self, item: Kept) -> None:
        """Read the next item of the history; its number is `num_items` then.

        Raises:
            Conflict: it is another job's. Unavailable: a beacon is not known here yet: again later.
            InvalidSeal: see `check_beacon`. Whatever `follow` raises.
        """
        after, before = follow(self._history, item), self._history
        if after.record is not None and after.record.job != self._job.job:
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
        record, newest = self.record, self._history.newest
        assert newest is not None  # the seal
        self._seals[record.step] = record.previous
        self.work.note(under, newest.names)
        oldest = record.checking.oldest_needed
        self.work.forget_before(StepNumber(record.step + 1) if oldest is None else oldest)
        self.changes.mark()

    async def _check_beacon(self, said: StepBeacon) -> None:
        check_beacon(said, await self._job.beacons.beacon_of(said.of), self._seals[said.of])


async def run_outside(
    job: FollowedJob,
    host_of: Callable[[Followed], Host],
    auditing: Auditing,
    peer: PeerId,
    tell: Tell,
    pause: Pause = asyncio.sleep,
) -> None:
    """Audit what a job draws for us until its last seal; start again where it was.

    Args:
        job: The job.
        host_of: Makes what the audits need, once the job is open; the caller closes it.
        auditing: What is done about what is drawn for us.
        peer: Our key's, which the job's list of outside auditors names.
        tell: The log.
        pause: Waits between two looks at the history.

    Raises:
        Conflict: the job does not list our key, or the history is of another job.
        BadSignature, Malformed, InvalidSeal: the history is none that can be.
        InvariantBroken: the audits have ended before the job; a bug of ours, and no silent one.
    """
    followed = Followed(job)
    await followed.look(tell)
    while not followed.is_open:
        await pause(LOOK_EVERY)
        await followed.look(tell)
    if not followed.lists(peer):
        raise Conflict("the job does not list this key as an outside auditor")
    running = asyncio.create_task(auditing.run(host_of(followed)))
    try:
        while not followed.is_over:
            _need_on_its_way(running)
            await pause(LOOK_EVERY)
            await followed.look(tell)
    finally:
        await end([running])
    tell("finished", step=followed.record.step)


def _need_on_its_way(auditing: asyncio.Task[None]) -> None:
    if auditing.done():
        raise InvariantBroken(f"auditing ended: {auditing.exception()!r}")


DIAL = 10.0  # seconds


class OutsideHost:
    """Satisfies `Host` for an auditor without lease, state or stage."""

    def __init__(
        self,
        followed: Followed,
        folder: Path,
        engine: Engine,
        connection: Connection,
        arithmetic: Arithmetic,
        behaviour: Behaviour,
        tell: Tell,
    ) -> None:
        """Once the job is open."""
        record = followed.record
        self._followed, self._connection = followed, connection
        self._peers = Peers(connection.transport, record.spec, record.opening, tell)
        self._weights: dict[StageIndex, DownloadedWeights] = {}
        self.folder, self.engine, self.session = folder, engine, connection.session
        self.behaviour, self.tell = behaviour, tell
        self.work, self.changes = followed.work, followed.changes
        self.sources = (partial(self._peers.fetch, patience=Patience()), self._found)
        self.strategy_for, self.rows = arithmetic.strategy_for, arithmetic.rows

    async def _found(self, digest: Digest, sort: Sort, _holders: Sequence[PeerId]) -> Buffer:
        """What the coordinator gives, which asks all that may have it."""
        return await self._peers.find(digest, sort)

    @property
    def record(self) -> JobRecord:
        """See `Host.record`."""
        return self._followed.record

    @property
    def parties(self) -> Sequence[Signed[Message]]:
        """See `Host.parties`."""
        return self._followed.parties

    async def weights(self, claim: WorkClaim) -> Path:
        """See `Host.weights`."""
        group, spec = claim.group, self.record.spec
        if group not in self._weights:
            meter = Meter(self.engine)
            check = self.strategy_for(meter).need_weights
            self._weights[group] = DownloadedWeights(
                self._peers,
                group,
                self.folder / f"stage-{group}",
                check=lambda file, root: meter(partial(check, file, group, root)),
                most_bytes=most_weight_bytes(spec, group),
                tell=self.tell,
            )
        return await self._weights[group](claim)

    async def reach_coordinator(self) -> None:
        """See `Host.reach_coordinator`; asks who the members are: those of before may be gone."""
        key = self.record.opening.session_key
        session = self._connection.transport.sessions.get(key)
        if session is None or session.closed:
            if (hint := await self._connection.locate()) is None:
                raise Unavailable("the coordinator's address is not known")
            await self._connection.transport.dial(key, [hint], deadline=DIAL)
        await self._peers.refresh()

    async def hand_in(self, report: Signed[WorkClaim], leaf: Leaf) -> None:
        """See `Host.hand_in`."""
        await self._peers.report(report, (leaf,))


async def audit_outside(
    folder: Path,
    job: FollowedJob,
    connection: Connection,
    arithmetic_of: Callable[[JobSpec], Arithmetic],
    auditing: Auditing,
    tell: Tell,
    behaviour: Behaviour = HONEST,
) -> None:
    """Audit what a job draws for us until its last seal; start again where it was.

    Args:
        folder: Holds our reports and downloaded weights, made on first use.
        job: Whose history is followed.
        connection: Under the key that its list of outside auditors names.
        arithmetic_of: What we compute with.
        auditing: What is done about what is drawn for us.
        tell: The log.
        behaviour: What we say of what we did not see, if we lie.

    Raises:
        TallystickError: as `run_outside`.
    """
    engine = Engine()

    def host_of(followed: Followed) -> OutsideHost:
        arithmetic = arithmetic_of(followed.record.spec)
        return OutsideHost(followed, folder, engine, connection, arithmetic, behaviour, tell)

    await connection.transport.serve(Dispatcher())
    try:
        peer = connection.session.peer
        await run_outside(job, host_of, auditing, peer, tell, connection.pause)
    finally:
        await engine.close()


@dataclass(frozen=True)
class DownloadedWeights:
    """Of one group."""

    peers: Peers  # who is asked
    group: StageIndex
    folder: Path  # for this alone
    check: Callable[[Path, Digest], Awaitable[None]]
    """Refuses a file of weights that do not lie under a root: raises WrongBytes."""
    most_bytes: int  # a longer file cannot be the weights
    tell: Tell

    async def __call__(self, claim: WorkClaim) -> Path:
        """See `Host.weights`."""
        path = self.folder / f"{claim.base.hex()}.weights"
        if path.exists():
            return path
        mates = self.peers.mates(self.group)
        others = tuple(peer for peer in mates if peer != claim.peer)
        try:
            return await self._from(others, claim, path)
        except (Misbehaved, Unavailable, Refused):
            if claim.peer not in mates:
                raise
        return await self._from((claim.peer,), claim, path)

    async def _from(self, mates: tuple[PeerId, ...], claim: WorkClaim, path: Path) -> Path:
        step = StepNumber(claim.round - 1)

        async def keep(file: Path) -> None:
            await self.check(file, claim.base)
            await asyncio.to_thread(self._keep, file, path)

        await take_file(
            SharedFile(self.peers, "weights", self.group, step, claim.base, mates),
            self.folder,
            keep,
            most_bytes=self.most_bytes,
            tell=telling_about(self.tell, step=claim.round, stage=self.group),
        )
        return path

    def _keep(self, file: Path, path: Path) -> None:
        try:
            for old in self.folder.glob("*.weights"):
                old.unlink(missing_ok=True)
            os.replace(file, path)
        except OSError as error:
            raise Unavailable(f"cannot keep {path}: {error.strerror}") from error
