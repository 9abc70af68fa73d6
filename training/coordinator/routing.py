"""What each trainer is told: its units, who may be given them and how many, and validation.

A trainer hears of what differs from what it says it goes by; several share the units by number.
Whoever has not been heard of for a while has no share: its session may outlive its wits. A peer
whose account is idle (`limiting`) is given no units: it stays a member, and finishes what it has.

Invariant: `attempts_from` rises from answer to answer, restarts included.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from typing import TypeAlias

from contracts.governance.checking import Terms
from contracts.governance.limits import Idle
from contracts.terms.ids import Address, PeerId, SessionKey, StageIndex, StepNumber
from contracts.terms.moments import UnixMillis
from training.coordinator.book import Book
from training.coordinator.ports import Clock
from training.stages.torch_free import num_groups
from training.swarm.caps import Units, quotas_for_trainer
from training.swarm.duties import copies_known, missing_places, workers_of
from training.swarm.state import Finished, Member, Place, SwarmState
from training.transport import calls
from training.transport.port import Session

WhyIdle: TypeAlias = Callable[[Address], Idle | None]
"""See `Limiting.why_idle`."""

LONG_POLL = 20.0  # seconds that a trainer waits for news before it hears how things are
SILENT_AFTER = 10_000  # ms without a question after which a trainer has no share


class WorkFor:
    """Answers to `job.next_step`."""

    def __init__(
        self,
        book: Book,
        sessions: Callable[[], Mapping[SessionKey, Session]],
        *,
        clock: Clock,
        why_idle: WhyIdle,
    ) -> None:
        self._book, self._sessions, self._clock = book, sessions, clock
        self._why_idle = why_idle
        self._asking: Counter[SessionKey] = Counter()
        self._heard: dict[SessionKey, UnixMillis] = {}
        self._busy: dict[SessionKey, tuple[int, set[int]]] = {}  # step, units that each has out
        self._attempts_from = 0
        self._over = False
        self.dismissed: set[SessionKey] = set()
        """Trainers that know that the job has ended."""

    def end(self) -> None:
        """Tell trainers that the job has ended, whether or not its last state was validated."""
        self._over = True
        self._book.changes.mark()

    async def next(self, trainer: SessionKey, request: calls.NextStep) -> calls.StepWork:
        """The next answer to `trainer`."""
        self._asking[trainer] += 1
        try:
            if trainer not in self._heard:
                self._book.changes.mark()  # the others have less to do from now on
            self._heard[trainer] = self._clock()
            self._busy[trainer] = request.step, {*request.busy}
            return await self._next(trainer, request)
        finally:
            self._asking[trainer] -= 1
            self._heard[trainer] = self._clock()

    def note_report(self, trainer: SessionKey, step: StepNumber, units: Iterable[int]) -> None:
        """These units of a step are not on their way any more."""
        if trainer in self._busy and self._busy[trainer][0] == step:
            self._busy[trainer][1].difference_update(units)

    async def _next(self, trainer: SessionKey, request: calls.NextStep) -> calls.StepWork:
        try:
            async with asyncio.timeout(LONG_POLL):
                while not self._is_news(trainer, request):
                    await self._book.changes.beyond(self._book.changes.version)
        except TimeoutError:
            pass  # the answer says how things are; the trainer decides what to try
        work = self._work(trainer)
        if work.finished:
            self.dismissed.add(trainer)
            self._book.changes.mark()
        return work

    # ------------------------------------------------------------------------------------ news

    def _is_news(self, trainer: SessionKey, request: calls.NextStep) -> bool:
        if self._is_over() or self._book.changes.version <= request.seen:
            return self._is_over()
        state = self._book.state
        step, units = self._busy[trainer]  # less what it has reported since it asked
        busy = units if step == state.step else set()
        places = self._places(trainer)
        validate = self._validate_after(trainer)
        if any(unit not in busy for _, unit in places) or validate > request.validating:
            return True
        # A member that is no worker yet has a quota too: without it the others' grow.
        quotas = {each.session_key: each.quota for each in self._worker_views(trainer)}
        known = {each.session_key: each.quota for each in request.known}
        return bool(places or validate) and known != quotas

    def _is_over(self) -> bool:
        return self._over and isinstance(self._book.state.phase, Finished)

    # ------------------------------------------------------------------------------------ work

    def _work(self, trainer: SessionKey) -> calls.StepWork:
        state = self._book.state
        places = self._places(trainer)
        units = {unit for _, unit in places}
        copies = [each for each in copies_known(state) if each[0][1] in units]
        self._attempts_from = max(self._attempts_from + 1, self._clock())
        return calls.StepWork(
            version=self._book.changes.version,
            step=state.step,
            attempts_from=self._attempts_from,
            places=tuple(calls.PlaceView(stage=stage, unit=unit) for stage, unit in places),
            copies=tuple(
                calls.CopyView(stage=stage, unit=unit, **asdict(copy))
                for (stage, unit), copy in copies
            ),
            workers=self._worker_views(trainer),
            validate_after=self._validate_after(trainer),
            validation_groups=num_groups(self._book.record_of_job.spec.batch.rows_per_unit),
            finished=self._is_over(),
        )

    def _places(self, trainer: SessionKey) -> tuple[Place, ...]:
        """Missing places of the units that fall to this trainer."""
        number, num_trainers = self._turn_of(trainer)
        places = missing_places(self._book.state)
        elsewhere = self._busy_elsewhere(trainer)
        return tuple(
            (stage, unit)
            for stage, unit in places
            if unit % num_trainers == number and unit not in elsewhere
        )

    def _busy_elsewhere(self, trainer: SessionKey) -> set[int]:
        """Units that another trainer has on their way, from before this one came."""
        found: set[int] = set()
        for other, (step, units) in self._busy.items():
            if other != trainer and step == self._book.state.step and self._is_present(other):
                found |= units
        return found

    def _turn_of(self, trainer: SessionKey) -> tuple[int, int]:
        """Which of how many trainers this one is."""
        all_trainers = self._book.record_of_job.opening.trainers
        present = [key for key in all_trainers if key == trainer or self._is_present(key)]
        return present.index(trainer), len(present)

    def _is_present(self, trainer: SessionKey) -> bool:
        if trainer not in self._sessions() or trainer not in self._heard:
            return False
        silent = self._clock() - self._heard[trainer]
        return self._asking[trainer] > 0 or silent < SILENT_AFTER

    def _working(self) -> SwarmState:
        """The state without members whose account is idle; all validate once the work is done."""
        state = self._book.state
        if state.draining or isinstance(state.phase, Finished):
            return state
        owners = {member.owner for member in state.members.values()}
        idle = {owner for owner in owners if self._why_idle(owner) is not None}
        if not idle:
            return state
        members = {peer: each for peer, each in state.members.items() if each.owner not in idle}
        return replace(state, members=members)

    def _workers(self, state: SwarmState) -> list[Member]:
        return [member for stage in state.terms.stages for member in workers_of(state, stage)]

    def _worker_views(self, trainer: SessionKey) -> tuple[calls.WorkerView, ...]:
        number, num_trainers = self._turn_of(trainer)
        working = self._working()
        parts = quotas_for_trainer(_soon(working), number, num_trainers, self._covered)
        return tuple(
            self._worker_view(member, *parts.get(member.peer, (0, 0)))
            for member in self._workers(working)
        )

    def _covered(self, stage: StageIndex, by_speed: Units) -> Units:
        """Units that q <= 1 covers in the step after the newest seal."""
        record, members = self._book.record_of_job, self._book.state.members
        stages = {peer: member.stage for peer, member in members.items()}
        terms = Terms(record.spec, record.pay_leases(), stages)
        return record.checking.most_units(StepNumber(record.step + 1), stage, by_speed, terms)

    def _worker_view(self, member: Member, quota: int, counted: int) -> calls.WorkerView:
        return calls.WorkerView(
            session_key=self._book.key_of(member.peer),
            stage=member.stage,
            address=member.address,
            rate=member.rate,
            quota=quota,
            counted=counted,
        )

    # ------------------------------------------------------------------------------ validation

    def _validate_after(self, trainer: SessionKey) -> StepNumber:
        """The step after which this trainer is to run the validation rows; 0: none."""
        due = validation_due(self._book)
        return due if due and self._turn_of(trainer)[0] == 0 else StepNumber(0)


def validation_due(book: Book) -> StepNumber:
    """The newest step with an update, if its state is to be validated and was not yet; else 0."""
    state, report = book.state, book.newest_report
    if report is None or report.validation_millionths is not None:
        return StepNumber(0)
    is_over = isinstance(state.phase, Finished) or state.draining
    is_wanted = is_over or report.step % book.record_of_job.spec.batch.validate_every == 0
    return report.step if is_wanted else StepNumber(0)


def _soon(state: SwarmState) -> SwarmState:
    """The state when members that are about to apply the newest seal have done so.

    Who is first is not to get what the others will do: quotas count them in.
    """
    newest = state.step if isinstance(state.phase, Finished) else StepNumber(state.step - 1)

    def ready(member: Member) -> Member:
        return replace(member, applied=newest) if member.applied == newest - 1 else member

    members: dict[PeerId, Member] = {peer: ready(each) for peer, each in state.members.items()}
    return replace(state, members=members)
