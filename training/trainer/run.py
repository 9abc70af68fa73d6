"""One trainer from start to end: ask for work, send units out in order, report what came back.

A trainer remembers nothing. Units that it had out when it died are missing for the next one, which
sends them again; a peer that has such a unit in its gradient already answers the same again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from contracts.terms.digest import peer_id
from contracts.terms.errors import TallystickError, Unavailable
from contracts.terms.ids import JobId, PeerId, SessionKey, StageIndex, StepNumber
from training.changes import Changes
from training.swarm.routing import Route, route
from training.swarm.state import Place
from training.tasks import first_error
from training.telling import Tell
from training.transport import calls
from training.transport.dispatch import Dispatcher
from training.transport.port import Session, Transport
from training.transport.wire import ask

Locate = Callable[[], Awaitable[str | None]]
Pause = Callable[[float], Awaitable[None]]

DIAL = 10.0  # seconds
ASK = 60.0  # seconds, longer than the coordinator keeps a trainer waiting
UNIT = 600.0  # seconds for one unit
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0


async def run_trainer(
    job: JobId,
    coordinator: SessionKey,
    *,
    transport: Transport,
    locate: Locate,
    tell: Tell,
    in_flight: int = 2,
    pause: Pause = asyncio.sleep,
) -> None:
    """Route the units of `job` until it has ended.

    Args:
        job: The job.
        coordinator: Session key of its coordinator.
        transport: Under a session key that the JobOpening names; served here, closed by the caller.
        locate: Where the coordinator listens now.
        tell: The log.
        in_flight: Units that one peer may have at a time, so that it need not wait for the next.
        pause: Waits between tries.

    Raises:
        Refused: the coordinator will not work with this key.
    """
    transport.set_members([])
    await transport.serve(Dispatcher())
    trainer = _Trainer(job, coordinator, transport, locate, tell, in_flight, pause)
    while await trainer.one_round():
        pass
    tell("finished")


@dataclass
class _Round:
    """Work that one answer of the coordinator gave."""

    step: StepNumber
    route: Route
    done: list[calls.UnitReport] = field(default_factory=list)
    workers: set[SessionKey] = field(default_factory=set)
    hands: set[asyncio.Task[None]] = field(default_factory=set)
    failures: int = 0
    over: bool = False
    changes: Changes = field(default_factory=Changes)


class _Trainer:
    """Sessions to the coordinator and to the peers, and the loop over them."""

    def __init__(
        self,
        job: JobId,
        coordinator: SessionKey,
        transport: Transport,
        locate: Locate,
        tell: Tell,
        in_flight: int,
        pause: Pause,
    ) -> None:
        self._job, self._coordinator, self._transport = job, coordinator, transport
        self._locate, self._tell, self._pause = locate, tell, pause
        self._in_flight = in_flight
        self._seen: tuple[Session | None, int] = (None, 0)  # versions are of one session
        self._span, self._step = FIRST_PAUSE, 0

    async def one_round(self) -> bool:
        """Ask for work and do what can be done of it; False when the job has ended."""
        try:
            session = await self._to_coordinator()
            work = await self._ask_work(session)
            if work.finished:
                return False
            if await self._do(work, session):
                self._span, self._seen = FIRST_PAUSE, (session, work.version)
                return True
        except Unavailable as error:
            self._tell("waits", step=self._step, code=error.code, reason=error.message)
        self._seen = (None, 0)  # look again, whether or not something has changed
        await self._pause(self._span)
        self._span = min(2 * self._span, LONGEST_PAUSE)
        return True

    async def _ask_work(self, session: Session) -> calls.StepWork:
        seen_of, version = self._seen
        seen = version if seen_of is session else 0
        request = calls.NextStep(job=self._job, seen=seen, known=())
        work, _ = await ask(session, calls.NEXT_STEP, request, deadline=ASK)
        if work.places and work.step != self._step:
            self._step = work.step
            self._tell("step_begun", step=work.step, units=len(work.places))
        return work

    async def _to_coordinator(self) -> Session:
        session = self._transport.sessions.get(self._coordinator)
        if session is not None and not session.closed:
            return session
        address = await self._locate()
        if address is None:
            raise Unavailable("the coordinator's address is not known yet")
        return await self._transport.dial(self._coordinator, [address], deadline=DIAL)

    async def _do(self, work: calls.StepWork, session: Session) -> bool:
        """Send out what is missing; False if some of it has to be tried again."""
        round = _Round(StepNumber(work.step), route((p.stage, p.unit) for p in work.places))
        with first_error():
            await self._do_round(work, session, round)
        return not round.failures

    async def _do_round(self, work: calls.StepWork, session: Session, round: _Round) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._report(round))
            watching = tasks.create_task(self._watch(work, session, round, tasks))
            self._put_to_work(work.workers, round, tasks)
            while round.hands:
                await asyncio.wait(round.hands)
            watching.cancel()
            round.over = True
            round.changes.mark()

    def _put_to_work(
        self, workers: Iterable[calls.MemberView], round: _Round, tasks: asyncio.TaskGroup
    ) -> None:
        for worker in workers:
            if worker.session_key in round.workers:
                continue
            round.workers.add(worker.session_key)
            for _ in range(self._in_flight):
                hand = tasks.create_task(self._work_with(worker, round))
                round.hands.add(hand)
                hand.add_done_callback(round.hands.discard)

    async def _watch(
        self, work: calls.StepWork, session: Session, round: _Round, tasks: asyncio.TaskGroup
    ) -> None:
        """Let peers take part that become ready while the round goes on."""
        while work.step == round.step and not work.finished:
            known = tuple(sorted(round.workers))
            request = calls.NextStep(job=self._job, seen=work.version, known=known)
            try:
                work, _ = await ask(session, calls.NEXT_STEP, request, deadline=ASK)
            except Unavailable:
                return  # the next round finds its coordinator again
            if work.step == round.step and round.hands:
                self._put_to_work(work.workers, round, tasks)

    async def _work_with(self, worker: calls.MemberView, round: _Round) -> None:
        """Keep one unit at a time with `worker` until none waits or it fails."""
        peer, stage = peer_id(worker.session_key), StageIndex(worker.stage)
        while True:
            round.route, place = round.route.next_for(peer, stage)
            if place is None:
                return
            try:
                await self._compute(worker, round.step, place)
            except TallystickError as error:  # whoever is at fault: the unit goes out again
                round.route = round.route.failed(peer, place)
                round.failures += 1
                self._tell_failure(round.step, peer, place, error)
                return
            round.route = round.route.came_back(peer, place)
            round.done.append(calls.UnitReport(stage=place[0], unit=place[1], peer=peer))
            round.changes.mark()

    def _tell_failure(
        self, step: StepNumber, peer: PeerId, place: Place, error: TallystickError
    ) -> None:
        about = {"peer": peer, "stage": place[0], "unit": place[1]}
        self._tell("unit_failed", step=step, code=error.code, reason=error.message, **about)

    async def _compute(self, worker: calls.MemberView, step: StepNumber, place: Place) -> None:
        session = self._transport.sessions.get(worker.session_key)
        if session is None or session.closed:
            hints = [worker.address]
            session = await self._transport.dial(worker.session_key, hints, deadline=DIAL)
        stage, unit = place
        request = calls.Compute(job=self._job, step=step, stage=stage, unit=unit, attempt=0)
        await ask(session, calls.COMPUTE, request, deadline=UNIT)

    async def _report(self, round: _Round) -> None:
        """Report units as they come back, in as few calls as that allows."""
        reported = 0
        while not (round.over and reported == len(round.done)):
            seen = round.changes.version
            if fresh := tuple(round.done[reported:]):
                await self._insist_on_report(round.step, fresh)
                reported += len(fresh)
            else:
                await round.changes.beyond(seen)

    async def _insist_on_report(self, step: StepNumber, done: tuple[calls.UnitReport, ...]) -> None:
        request = calls.UnitsReport(job=self._job, step=step, done=done)
        span = FIRST_PAUSE
        while True:
            try:
                session = await self._to_coordinator()
                await ask(session, calls.UNITS_DONE, request, deadline=ASK)
            except Unavailable as error:
                self._tell("waits", step=step, code=error.code, reason=error.message)
                await self._pause(span)
                span = min(2 * span, LONGEST_PAUSE)
            else:
                self._tell("units_reported", step=step, units=len(done))
                return
