"""An auditor from outside a job follows its history, and audits while it lasts.

It has no lease, no state and no stage. The job's history, as the market keeps it, is read again at
every start: it says all by itself, and costs milliseconds a step.

Invariants: nothing counts before the fold of `contracts.governance` has taken it, with every
signature; a seal counts once each beacon that it names is the one that we read from the chain,
where it was anchored with the seal that the history has.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TypeAlias

from contracts.governance.checking import Begin
from contracts.governance.job import JobHistory, follow
from contracts.governance.record import JobRecord
from contracts.terms.beacons import Beacons, check_beacon
from contracts.terms.errors import Conflict, InvariantBroken, Unavailable
from contracts.terms.history import Kept
from contracts.terms.ids import Digest, JobId, PeerId, StepNumber
from contracts.terms.messages import Message, Seal, StepBeacon
from contracts.terms.signatures import Signed
from contracts.terms.typed_data import Domain
from training.changes import Changes
from training.tasks import end
from training.telling import Tell
from training.worker.sealed import SealedWork
from verification.auditing.host import Host
from verification.auditing.program import Auditing, Pause

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
