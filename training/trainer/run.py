"""One trainer from start to end: ask for work, send units through the stages, report what is done.

A trainer remembers nothing. Units that it had out when it died are missing for the next one, or for
the others, which send them again; a peer that has such a unit already answers the same again. It
handles ids and digests alone: tensors go from peer to peer.
"""

import asyncio
from collections.abc import Iterable, Mapping
from zlib import crc32

from contracts.terms.errors import Unavailable
from contracts.terms.ids import JobId, SessionKey, StageIndex, StepNumber
from contracts.terms.items import ItemNumber
from training.backoff import Backoff
from training.changes import Changes
from training.tasks import first_error
from training.telling import Rarely, Span, Tell
from training.trainer.calling import FIRST_PAUSE, LONGEST_PAUSE, Calling, Pause, TensorLost
from training.trainer.sessions import Locate, Sessions
from training.trainer.validation import validation_loss
from training.trainer.ways import (
    Stretch,
    Way,
    copies_of,
    lost,
    next_call,
    set_out,
    stretches_of,
    with_answer,
)
from training.transport import calls
from training.transport.dispatch import Dispatcher
from training.transport.port import Session, Transport
from training.transport.wire import Answer, Method, Request, ask

ASK = 60.0  # seconds, longer than the coordinator keeps a trainer waiting
IN_FLIGHT = 2  # units on their way for each worker that there is, so that none need wait
LOST_AFTER = 4  # tries to get a tensor that only a counted copy can have


async def run_trainer(
    job: JobId,
    coordinator: SessionKey,
    *,
    transport: Transport,
    locate: Locate,
    tell: Tell,
    max_units: int | None = None,
    pause: Pause = asyncio.sleep,
) -> None:
    """Route the units of `job` until it has ended.

    Args:
        job: The job.
        coordinator: Session key of its coordinator.
        transport: Under a session key that the JobOpening names; served here, closed by the caller.
        locate: Where the coordinator listens now.
        tell: The log.
        max_units: Units on their way in all, at most; 1 makes a deterministic order.
        pause: Waits between tries.

    Raises:
        Refused: the coordinator will not work with this key.
    """
    transport.set_members([])
    await transport.serve(Dispatcher())
    sessions, seed = Sessions(transport, coordinator, locate), crc32(transport.key)
    trainer = _Trainer(job, sessions, seed, tell, max_units, pause)
    with first_error():
        await trainer.until_over()
    tell("finished")


class _Trainer:
    """What is on its way, and the tasks that move it."""

    def __init__(
        self,
        job: JobId,
        sessions: Sessions,
        seed: int,
        tell: Tell,
        max_units: int | None,
        pause: Pause,
    ) -> None:
        self._job, self._sessions = job, sessions
        self._calling, self._validating = (
            Calling(job, sessions, seed=seed, tell=tell, pause=pause) for _ in range(2)
        )
        self._tell, self._pause = tell, pause
        self._tell_rarely = Rarely(tell)
        self._max_units = max_units
        self._tasks = asyncio.TaskGroup()
        self._step, self._known = StepNumber(0), tuple[calls.QuotaView, ...]()
        self._heard: tuple[Session | None, int] = (None, 0)  # versions are of one session
        self._waiting: dict[ItemNumber, tuple[Stretch, ...]] = {}
        self._walking: dict[ItemNumber, asyncio.Task[None]] = {}
        self._ended: dict[ItemNumber, tuple[calls.CopyView, ...] | None] = {}  # not reported yet
        self._reporting: frozenset[ItemNumber] = frozenset()
        self._rounds: dict[ItemNumber, int] = {}  # how often a unit of this step has set out
        self._to_report = Changes()
        self._look_again = asyncio.Event()
        self._validated_after = 0
        self._validation: asyncio.Task[None] | None = None

    async def until_over(self) -> None:
        """Ask for work and do it, until the coordinator says that the job has ended."""
        async with self._tasks:
            reporting = self._tasks.create_task(self._report())
            try:
                await self._ask_for_work()
            finally:
                self._abandon()
                reporting.cancel()

    # ---------------------------------------------------------------------------------- asking

    async def _ask_for_work(self) -> None:
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        while True:
            try:
                session, work = await self._next_work()
            except Unavailable as error:
                self._tell_rarely("waits", step=self._step, code=error.code, reason=error.message)
                self._heard = (None, 0)
                await self._pause(backoff.next())
                continue
            backoff.begin()
            if work is None:
                self._heard = (None, 0)  # a report says that there is something to be done
            elif work.finished:
                return
            else:
                self._take(work)
                self._heard = (session, work.version)

    async def _next_work(self) -> tuple[Session, calls.StepWork | None]:
        """The coordinator's next news; None when it has to be asked again at once."""
        session = await self._sessions.to_coordinator()
        heard_of, version = self._heard
        is_up_to_date = heard_of is session and not self._look_again.is_set()
        self._look_again.clear()
        request = calls.NextStep(
            job=self._job,
            seen=version if is_up_to_date else 0,
            step=self._step,
            known=self._known,
            busy=tuple(sorted(self._busy())),
            validating=self._validated_after,
        )
        asking = asyncio.ensure_future(ask(session, calls.NEXT_STEP, request, deadline=ASK))
        looking = asyncio.ensure_future(self._look_again.wait())
        try:
            await asyncio.wait({asking, looking}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                work, _ = asking.result()
                return session, work
            return session, None
        finally:
            asking.cancel()
            looking.cancel()

    def _busy(self) -> frozenset[ItemNumber]:
        return self._reporting | self._waiting.keys() | self._walking.keys() | self._ended.keys()

    def _take(self, work: calls.StepWork) -> None:
        if work.step != self._step:
            self._begin(work)
        self._known = tuple(
            calls.QuotaView(session_key=each.session_key, quota=each.quota) for each in work.workers
        )
        self._calling.announce(work)
        under_way = self._busy() - self._waiting.keys()
        self._waiting = {
            unit: stretches for unit, stretches in _stretches(work).items() if unit not in under_way
        }
        if work.validate_after > self._validated_after:
            self._validated_after = work.validate_after
            self._validation = self._tasks.create_task(self._validate(work))
        if self._validation is not None:
            self._validating.announce(_for_validation(work))
        self._fill()

    def _begin(self, work: calls.StepWork) -> None:
        # A step without an update leaves the state that is being validated.
        stands = work.validate_after == self._validated_after
        validation = self._validation if stands else None
        self._abandon(but=validation)
        self._validation = validation
        self._step = StepNumber(work.step)
        if work.places:
            self._tell("step_begun", step=work.step, units=len({p.unit for p in work.places}))

    def _abandon(self, but: asyncio.Task[None] | None = None) -> None:
        """What was on its way is of a step that is over."""
        for task in (*self._walking.values(), self._validation):
            if task is not None and task is not but:
                task.cancel()
        self._waiting, self._walking, self._ended = {}, {}, {}
        self._reporting = frozenset()  # its answer does not matter any more
        self._rounds, self._validation = {}, None

    # ----------------------------------------------------------------------------------- units

    def _fill(self) -> None:
        """Send out units, the lowest first, as long as there is room."""
        if self._validation is not None:
            return  # the state of the step before is gone as soon as all units are done
        room = max(1, IN_FLIGHT * len(self._known))
        if self._max_units is not None:
            room = min(room, self._max_units)
        for unit in sorted(self._waiting)[: max(0, room - len(self._walking))]:
            stretches = self._waiting.pop(unit)
            self._walking[unit] = self._tasks.create_task(self._walk(unit, stretches))

    async def _walk(self, unit: ItemNumber, stretches: tuple[Stretch, ...]) -> None:
        """Take a unit through the stages that miss it; then it waits to be reported."""
        rounds = self._rounds.get(unit, 0)
        self._rounds[unit] = rounds + 1
        if rounds:  # what it came to before did not count
            await self._pause(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(rounds, 16)))
        span, copies = Span(), await self._go_all(stretches)
        self._walking.pop(unit)
        event = "unit_gave_up" if copies is None else "unit_walked"
        self._tell(event, step=self._step, unit=unit, **span.take_timings())
        self._ended[unit] = copies
        self._to_report.mark()
        self._fill()

    async def _go_all(self, stretches: Iterable[Stretch]) -> tuple[calls.CopyView, ...] | None:
        """The copies of all stretches; None as soon as one of them has none."""
        copies: tuple[calls.CopyView, ...] = ()
        for stretch in stretches:
            if (made := await self._go(stretch)) is None:
                return None
            copies += made
        return copies

    async def _go(self, stretch: Stretch) -> tuple[calls.CopyView, ...] | None:
        """The copies of a stretch; None if only a counted copy has what they are made of."""
        way, span, tries = set_out(stretch), FIRST_PAUSE, 0
        while (call := next_call(way)) is not None:
            try:
                way = with_answer(way, call, await self._calling.go(stretch, call))
            except TensorLost as error:
                about = {"step": self._step, "stage": call.stage, "unit": stretch.unit}
                self._tell("tensor_lost", digest=error.digest, **about)
                if (again := self._made_again(way, error)) is None:
                    tries += 1
                    if tries == LOST_AFTER:
                        return None
                    await self._pause(span)  # whoever has it may be back in a moment
                    span = min(2 * span, LONGEST_PAUSE)
                else:
                    way = again
        return copies_of(way)

    def _made_again(self, way: Way, error: TensorLost) -> Way | None:
        again = lost(way, error.digest)
        if again is not None:
            makers = way.keepers.get(error.digest, ())
            self._calling.blame(way.stretch.unit, makers, error.by)
        return again

    # -------------------------------------------------------------------------------- reports

    async def _report(self) -> None:
        """Report units as they come to their end, in as few calls as that allows."""
        while True:
            seen = self._to_report.version
            if self._ended:
                await self._report_ended()
            else:
                await self._to_report.beyond(seen)

    async def _report_ended(self) -> None:
        step, ended, self._ended = self._step, self._ended, {}
        self._reporting = frozenset(ended)
        copies = [copy for unit in sorted(ended) for copy in ended[unit] or ()]
        gone = tuple(unit for unit in sorted(ended) if ended[unit] is None)
        report = calls.UnitsReport(job=self._job, step=step, done=tuple(copies), lost=gone)
        taken = await self._insist(calls.UNITS_DONE, report)
        self._reporting = frozenset()
        self._tell("units_reported", step=step, units=len(ended) - len(gone), lost=len(gone))
        if taken.missing:
            self._look_again.set()

    async def _insist(self, method: Method[Request, Answer], request: Request) -> Answer:
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        while True:
            try:
                session = await self._sessions.to_coordinator()
                answer, _ = await ask(session, method, request, deadline=ASK)
            except Unavailable as error:
                self._tell_rarely("waits", step=self._step, code=error.code, reason=error.message)
                await self._pause(backoff.next())
            else:
                return answer

    # ----------------------------------------------------------------------------- validation

    async def _validate(self, work: calls.StepWork) -> None:
        after = StepNumber(work.validate_after)
        groups = work.validation_groups
        loss = await validation_loss(self._validating, after, groups, self._pause)
        if loss is None:
            self._tell("not_validated", step=after)
        else:
            self._tell("validated", step=after, loss=loss)
            await self._insist(
                calls.VALIDATED, calls.Validated(job=self._job, step=after, loss=loss)
            )
        self._validation = None
        self._fill()


def _stretches(work: calls.StepWork) -> Mapping[ItemNumber, tuple[Stretch, ...]]:
    """What is missing, unit by unit."""
    missing: dict[ItemNumber, set[StageIndex]] = {}
    copies: dict[ItemNumber, dict[StageIndex, calls.CopyView]] = {}
    for place in work.places:
        missing.setdefault(place.unit, set()).add(place.stage)
    for copy in work.copies:
        copies.setdefault(copy.unit, {})[copy.stage] = copy
    return {
        unit: stretches_of(unit, frozenset(stages), copies.get(unit, {}))
        for unit, stages in missing.items()
    }


def _for_validation(work: calls.StepWork) -> calls.StepWork:
    """Validation groups count in nobody's quota."""
    groups = work.validation_groups
    workers = (w.model_copy(update={"quota": groups, "counted": 0}) for w in work.workers)
    return work.model_copy(update={"workers": tuple(workers), "places": ()})
