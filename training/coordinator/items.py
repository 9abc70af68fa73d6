"""The router at work: what it is told of the job and of time, and what it says to peers.

What units came to is recorded as soon as the loop has time, so that under load much of it shares a
write. A peer whose account is idle (`limiting`) is given no units: it stays a member, and finishes
what it has.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TypeAlias
from zlib import crc32

from contracts.governance.checking import Terms
from contracts.governance.limits import Idle
from contracts.terms.errors import Unavailable
from contracts.terms.ids import Address, PeerId, StageIndex, StepNumber
from training.coordinator.book import Book
from training.coordinator.ports import Clock
from training.coordinator.router import Router, View
from training.stages.torch_free import num_groups
from training.swarm.caps import Units, quotas_of
from training.swarm.duties import missing_places, workers_of
from training.swarm.events import UnitsDone, UnitsLost
from training.swarm.routing import NO_STEP, Listed
from training.swarm.state import Draft, Finished, Member, SwarmState, Working
from training.telling import Rarely, Tell
from training.transport.calls import ItemTasks, NextItem

WhyIdle: TypeAlias = Callable[[Address], Idle | None]
"""See `Limiting.why_idle`."""

LONG_POLL = 20.0  # seconds that a peer waits for news before it hears that there is none
COME_BACK = 2.0  # seconds that a restart waits, at most, for what peers have of the step
WRITE_AGAIN = 0.2


class Items:
    """Answers to `item.next`."""

    def __init__(
        self,
        book: Book,
        *,
        clock: Clock,
        why_idle: WhyIdle,
        tell: Tell,
        max_units: int | None = None,
    ) -> None:
        """`max_units`: as `Router` takes it."""
        self._book, self._clock, self._why_idle = book, clock, why_idle
        self._tell_rarely = Rarely(tell)
        self._now = asyncio.get_running_loop().time
        state = book.state
        self._router = Router(
            state.terms.num_stages,
            seed=crc32(book.record_of_job.opening.session_key),
            attempts_from=clock(),
            tell=tell,
            awaited=state.members,
            until=self._now() + min(COME_BACK, state.terms.redo_after / 1000),
            max_units=max_units,
        )
        self._polls: dict[PeerId, asyncio.Event] = {}
        self._poke = asyncio.Event()
        self._listed: tuple[object, View] | None = None

    async def next(self, peer: PeerId, request: NextItem) -> ItemTasks:
        """Take what is handed in; tasks at once if anything was, else when there are some."""
        self._router.take(peer, request, self._now())
        self._spread()
        owed = self._router.owed(peer, request.holding)
        if request.is_first or request.results or request.failed or owed.tasks or owed.drops:
            return owed
        news = self._polls.setdefault(peer, asyncio.Event())
        with suppress(TimeoutError):
            async with asyncio.timeout(LONG_POLL):
                await news.wait()
        return self._router.owed(peer, request.holding)

    def _spread(self) -> None:
        """Let those hear for whom there is news, and the loop of what has ended."""
        for peer in self._router.news & self._polls.keys():
            self._polls.pop(peer).set()
        self._router.news.clear()
        self._poke.set()

    async def run(self) -> None:
        """Keep the router up to date for ever; cancelled when the job is over.

        Raises:
            InvariantBroken: no valid seal follows from what was recorded.
        """
        following = asyncio.create_task(self._follow())
        try:
            while True:
                self._poke.clear()
                try:
                    self._record()
                except Unavailable as error:
                    self._tell_rarely("not_recorded", code=error.code, reason=error.message)
                    await asyncio.sleep(WRITE_AGAIN)
                    continue
                self._router.look(self._view(), self._now())
                self._router.pass_time(self._now())
                self._spread()
                self._poke.clear()
                if not self._router.ended:
                    await self._wait()
        finally:
            following.cancel()

    async def _follow(self) -> None:
        changes = self._book.changes
        while True:
            seen = changes.version
            self._poke.set()
            await changes.beyond(seen)

    async def _wait(self) -> None:
        moment = self._router.next_moment()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(moment):
                await self._poke.wait()

    def _record(self) -> None:
        """What units came to, and the loss on validation rows."""
        ended, at = self._router.ended, self._clock()
        if ended:
            step = self._router.step
            if copies := [copy for unit in sorted(ended) for copy in ended[unit] or ()]:
                self._book.record(UnitsDone(step, tuple(copies), at))
            if gone := tuple(unit for unit in sorted(ended) if ended[unit] is None):
                self._book.record(UnitsLost(step, gone, at))
            self._router.reported()
        if self._router.validated is not None:
            self._book.note_validation(*self._router.validated)
            self._router.validated = None

    # --------------------------------------------------------------------------- how things are

    def _view(self) -> View:
        state, due = self._book.state, validation_due(self._book)
        working = self._working()
        draft = state.phase.draft if isinstance(state.phase, Working) else Draft()
        about = (state.step, working.members, draft.struck, isinstance(state.phase, Finished))
        if self._listed is None or self._listed[0] != about:
            self._listed = about, self._list(working)
        return replace(
            self._listed[1],
            missing=missing_places(state),
            done=draft.done,
            validate_after=due,
            num_groups=num_groups(self._book.record_of_job.spec.batch.rows_per_unit),
        )

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

    def _list(self, working: SwarmState) -> View:
        """Who may be given how many units, and who may end what it has begun."""
        state, quotas = self._book.state, quotas_of(_soon(working), self._covered)
        workers = {
            stage: tuple(
                Listed(each.peer, each.rate, quotas.get(each.peer, 0))
                for each in workers_of(working, stage)
            )
            for stage in state.terms.stages
        }
        struck = state.phase.draft.struck if isinstance(state.phase, Working) else ()
        here = {
            peer: each.stage
            for peer, each in state.members.items()
            if each.is_here and each.applied == _newest(state) and peer not in struck
        }
        return View(state.step, workers=workers, here=here)

    def _covered(self, stage: StageIndex, by_speed: Units) -> Units:
        """Units that q <= 1 covers in the step after the newest seal."""
        record, members = self._book.record_of_job, self._book.state.members
        stages = {peer: member.stage for peer, member in members.items()}
        terms = Terms(record.spec, record.pay_leases(), stages)
        return record.checking.most_units(StepNumber(record.step + 1), stage, by_speed, terms)


def validation_due(book: Book) -> StepNumber:
    """The newest step with an update, if its state is to be validated and was not yet; else 0."""
    state, report = book.state, book.newest_report
    if report is None or report.validation_millionths is not None:
        return NO_STEP
    is_over = isinstance(state.phase, Finished) or state.draining
    is_wanted = is_over or report.step % book.record_of_job.spec.batch.validate_every == 0
    return report.step if is_wanted else NO_STEP


def _newest(state: SwarmState) -> StepNumber:
    return state.step if isinstance(state.phase, Finished) else StepNumber(state.step - 1)


def _soon(state: SwarmState) -> SwarmState:
    """The state when members that are about to apply the newest seal have done so.

    Who is first is not to get what the others will do: quotas count them in.
    """
    newest = _newest(state)

    def ready(member: Member) -> Member:
        return replace(member, applied=newest) if member.applied == newest - 1 else member

    members: Mapping[PeerId, Member] = {p: ready(each) for p, each in state.members.items()}
    return replace(state, members=members)
