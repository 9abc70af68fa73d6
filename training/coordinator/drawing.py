"""What time brings to the draws of a job: beacons that count now, and auditors that are late.

Deadlines are counted in seals (`checking`), which come quickly while a job ends. So a report is
late only after `commit_timeout` by our own clock besides, or four times what the replay takes if
that is longer, counted while we are up and its auditor does not wait for us. Nobody waits so for
one who has left.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from statistics import median_low
from typing import TypeAlias

from contracts.governance.checking import Late
from contracts.terms.beacons import Beacon, Beacons
from contracts.terms.errors import Refused, Unavailable
from contracts.terms.ids import Digest, PeerId
from contracts.terms.items import count
from contracts.terms.messages import StepBeacon
from contracts.terms.moments import UnixMillis
from training.coordinator.blobs import Blobs
from training.coordinator.draws import beacon_wanted, late_reports
from training.coordinator.journal import JobJournal
from training.coordinator.ports import Clock
from training.rounds.events import NoticeDue
from training.telling import Tell

LOOK_EVERY = 0.25  # seconds
REPLAYS = 4  # times what a replay takes, for one beside other work

Pause = Callable[[float], Awaitable[None]]
Name: TypeAlias = tuple[Digest, int]
"""Subject and attempt."""


@dataclass
class Turn:
    """Milliseconds of an attempt, as we saw it."""

    counted: int = 0
    excused: int = 0  # it had to wait for us


class Drawing:
    """Records beacons and missed reports of a checked job."""

    def __init__(
        self,
        job: JobJournal,
        beacons: Beacons,
        blobs: Blobs,
        *,
        clock: Clock,
        tell: Tell,
        pause: Pause,
    ) -> None:
        """`blobs` say for whom we look for data: such a report waits."""
        self._job, self._beacons, self._blobs = job, beacons, blobs
        self._clock, self._tell, self._pause = clock, tell, pause
        self._turns: dict[Name, Turn] = {}
        self._looked_at = UnixMillis(0)

    async def run(self) -> None:
        """Look for ever; cancelled when the job is over."""
        while self._job.state.terms.is_checked:
            try:
                await self._take_beacons()
            except (Unavailable, Refused) as error:
                self._tell("beacons_wait", code=error.code, reason=error.message)
            self._note_late()
            await self._pause(LOOK_EVERY)

    async def _take_beacons(self) -> None:
        while (step := beacon_wanted(self._job.record_of_job, self._job.unsealed())) is not None:
            beacon = await self._beacons.beacon_of(step)
            if beacon is None:
                return
            self._record(beacon)

    def _record(self, beacon: Beacon) -> None:
        message = StepBeacon(
            job=self._job.record_of_job.job,
            step=self._job.state.round,
            of=beacon.step,
            batch=beacon.batch,
            block=beacon.block,
            beacon=beacon.value,
        )
        signed = self._job.sign(message)
        self._job.check(self._clock(), signed, unsealed=frozenset({message.digest()}))
        self._tell("beacon_taken", step=message.step, of=beacon.step)

    def _note_late(self) -> None:
        record, now = self._job.record_of_job, self._clock()
        awaited = {(each.subject, each.attempt): each for each in record.checking.awaited()}
        self._blobs.forget_others(awaited.values())
        self._count(awaited, now)
        slow = [
            each
            for name, each in awaited.items()
            if self._turns[name].counted >= self._allowed(each)
        ]
        step = self._job.state.round
        late = late_reports(record, self._job.unsealed(), step)
        for each in [each for each in slow if each in late]:
            self._say_late(each)
        state = self._job.state
        waits = self._blobs.waits or (slow and not late)
        if state.is_idle and (state.unsealed or waits):  # else the seals of work carry on
            self._job.check(now, seal_wanted=True)  # also because these are counted in seals

    def _count(self, awaited: Mapping[Name, Late], now: UnixMillis) -> None:
        passed, self._looked_at = now - self._looked_at, now
        for name in self._turns.keys() & awaited.keys():
            turn = self._turns[name]
            if self._blobs.excuses(awaited[name]) and turn.excused < self._blobs.longest_excuse:
                turn.excused += passed
            else:
                turn.counted += passed
        self._turns = {name: self._turns.get(name, Turn()) for name in awaited}

    def _allowed(self, late: Late) -> int:
        """Milliseconds that count until a report is late.

        A replay goes by the median of the rates that we measured in its stage, the lower of two: no
        single one who seemed quick or slow decides how long all others have.
        """
        if self._has_left(late.auditor):
            return 0
        least = self._job.record_of_job.spec.rules.commit_timeout
        rates = [m.rate for m in self._job.state.members.values() if m.group == late.stage]
        claim = self._job.sealed_work.audited(late.subject).claim
        if claim.what != "work" or not rates:  # a sum takes next to no time
            return least
        return max(least, REPLAYS * count(claim.items) * 10**9 // median_low(rates))

    def _has_left(self, auditor: PeerId) -> bool:
        listed = self._job.record_of_job.outside.auditors
        return auditor not in self._job.state.members and all(
            auditor != each.peer for each in listed
        )

    def _say_late(self, late: Late) -> None:
        step = self._job.state.round
        due = NoticeDue("missed_report", late.auditor, late.stage, late.subject)
        if self._job.check(self._clock(), notices=[due]):  # before it is told: some count on it
            self._tell("report_missed", step=step, peer=late.auditor)
