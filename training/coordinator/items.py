"""The router at work: what it is told of the job and of time, and what it says to peers.

What was done is recorded as soon as the loop has time, so that under load much of it shares a
write. A peer whose account is idle (`limiting`) is given no items: it stays a member.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from typing import TypeAlias

from contracts.governance.checking import Terms as CheckedTerms
from contracts.governance.limits import Idle
from contracts.terms.errors import Unavailable
from contracts.terms.ids import Address, PeerId, StepNumber
from training.coordinator.caps import Caps, quotas_of
from training.coordinator.journal import Happened, JobJournal
from training.coordinator.ports import Clock
from training.coordinator.router import Router
from training.coordinator.walks import Round
from training.rounds.events import ItemsDone, ItemsLost
from training.rounds.machine import view
from training.rounds.membership import RETURN_MS
from training.rounds.state import (
    NO_ROUND,
    Commit,
    Finished,
    RoundState,
    Work,
    can_work,
    items_ahead,
)
from training.stages.torch_free import validation_weights
from training.strategies.port import Group, Item, Member, RoundNumber
from training.telling import Rarely, Tell
from training.transport.calls import ItemTasks, NextItem, TaskName

WhyIdle: TypeAlias = Callable[[Address], Idle | None]
"""See `Limiting.why_idle`."""

LONG_POLL = 20.0  # seconds that a peer waits for news before it hears that there is none
WRITE_AGAIN = 0.2
GATHER = 50e-6
"""Seconds, for each member, in which more may come before items are dealt and results stored."""


class ItemRoutes:
    """Answers to `item.next`."""

    def __init__(self, job: JobJournal, *, clock: Clock, why_idle: WhyIdle, tell: Tell) -> None:
        """Of a job whose journal is open."""
        self._job, self._clock, self._why_idle = job, clock, why_idle
        self._tell_rarely = Rarely(tell)
        self._now = asyncio.get_running_loop().time
        state = job.state
        self._router = Router(
            job.rules,
            len(state.terms.groups),
            tell=tell,
            awaited=state.members,
            patience=RETURN_MS / 1000,
            waits=state.terms.layout.most_items is not None,
        )
        self._polls: dict[PeerId, asyncio.Event] = {}
        self._free: set[PeerId] = set()  # who is, as soon as its claim is stored
        self._soon: tuple[object, object, Sequence[Item]] = None, None, ()
        """Claims, cursor, and the items that the next round has by them."""
        self._dropped: dict[PeerId, frozenset[TaskName]] = {}  # that a peer was told of
        self._poke = asyncio.Event()
        self._listed: tuple[tuple[object, ...], Round] = (), Round(NO_ROUND)
        record = job.record_of_job
        self._row_weights = validation_weights(record.spec.batch.rows_at_once, record.targets)

    async def next(self, peer: PeerId, request: NextItem) -> ItemTasks:
        """Take what is handed in; tasks at once if anything was, else when there are some."""
        self._router.take(peer, request, self._now())
        self._spread()
        owed = self._owed(peer, request)
        if request.is_first or request.results or request.failed or owed is not None:
            return owed or ItemTasks(tasks=(), drops=())
        if request.is_free and (item := self._granted(peer)) is not None:
            return ItemTasks(tasks=(), drops=(), ahead=item)
        news = self._polls.setdefault(peer, asyncio.Event())
        if request.is_free and peer not in self._through():
            self._free.add(peer)
        with suppress(TimeoutError):
            async with asyncio.timeout(LONG_POLL):
                await news.wait()
        self._free.discard(peer)
        item = self._granted(peer) if request.is_free else None
        owed = self._owed(peer, request) or ItemTasks(tasks=(), drops=())
        return owed.model_copy(update={"ahead": item})

    def _through(self) -> Set[PeerId]:
        """Whose claim of the round is stored, of all that counts of it."""
        open, round = self._job.state.open, self._job.state.round
        if open is None:
            return frozenset()
        own = (claim for claim in open.claims.values() if claim.round == round)
        return {claim.peer for claim in own} - open.unclaimed.keys()

    def _granted(self, peer: PeerId) -> Item | None:
        """An item of the next round, for who has nothing left to do in this one."""
        state = self._job.state
        if state.open is None or peer not in self._through():
            return None
        if self._soon[0] is not state.open.claims or self._soon[1] is not state.cursor:
            self._soon = state.open.claims, state.cursor, items_ahead(state)
        return self._router.grant(peer, self._soon[2])

    def _owed(self, peer: PeerId, request: NextItem) -> ItemTasks | None:
        """What is news to a peer; a drop is, once."""
        owed = self._router.owed(peer, request.holding)
        known = frozenset() if request.is_first else self._dropped.get(peer, frozenset())
        self._dropped[peer] = frozenset(owed.drops)
        return owed if owed.tasks or not self._dropped[peer] <= known else None

    def _spread(self) -> None:
        """Let those hear for whom there is news, and the loop of what was done."""
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
                self._router.look(self._round(), self._now())
                if self._free:
                    through = self._free & self._through()
                    self._free -= through
                    self._router.news |= through
                self._router.pass_time(self._now())
                self._spread()
                self._poke.clear()
                if not self._router.done:
                    await self._wait()
                await asyncio.sleep(GATHER * len(self._job.state.members))
        finally:
            following.cancel()

    async def _follow(self) -> None:
        changes = self._job.changes
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
        """What was done, what is lost, and the loss on validation rows."""
        router, at = self._router, self._clock()
        happened: list[Happened] = [
            (ItemsDone(peer, tuple(router.done[peer]), at), ()) for peer in sorted(router.done)
        ]
        if router.round == self._job.state.round:
            lost = [(peer, items, False) for peer, items in sorted(router.lacked.items())]
            lost += [(peer, items, True) for peer, items in sorted(router.off.items())]
            for peer, items, off in lost:
                happened.append((ItemsLost(peer, tuple(sorted(items)), at, off), ()))
            if router.gone:
                happened.append((ItemsLost(None, tuple(sorted(router.gone)), at), ()))
        if happened:
            self._job.record_all(happened)
            router.reported()
        if router.validated is not None:
            self._job.note_validation(*router.validated, at)
            router.validated = None

    # --------------------------------------------------------------------------- how things are

    def _round(self) -> Round:
        state, due = self._job.state, validation_due(self._job)
        open = self._job.state.open
        off = open.off if open is not None else frozenset[PeerId]()
        is_over = isinstance(state.phase, Finished)
        about = (state.members, off, state.may_work, self._job.record_of_job, is_over, state.round)
        if not self._listed[0] or any(
            a is not b and a != b for a, b in zip(self._listed[0], about, strict=True)
        ):
            self._listed = about, self._list(off)
        is_open = isinstance(state.phase, Work | Commit)
        return replace(
            self._listed[1],
            view=view(state, self._clock()) if is_open else None,
            unclaimed={} if open is None else open.unclaimed,
            may_lack=isinstance(state.phase, Work) and state.phase.open.num_commits == 0,
            validate_after=due,
            row_weights=self._row_weights,
        )

    def _list(self, off: frozenset[PeerId]) -> Round:
        """Who may be given how many items, and who may end what it has begun."""
        state = self._job.state
        soon = _soon(state)
        workers = [m for m in soon.members.values() if can_work(soon, m, off)]
        if not (state.draining or isinstance(state.phase, Finished)):  # then all validate
            idle = {m.owner for m in workers if self._why_idle(m.owner) is not None}
            workers = [member for member in workers if member.owner not in idle]
        newest = state.newest_seal
        if state.draining or isinstance(state.phase, Finished):  # seals change no state any more
            newest = validation_due(self._job) or newest
        here = {
            peer: each.group
            for peer, each in state.members.items()
            if each.is_here and each.applied >= newest and peer not in off and state.may(peer)
        }
        return Round(state.round, here=here, caps=quotas_of(state, workers, self._covered))

    def _covered(self, group: Group, by_speed: Caps) -> Caps:
        """Items that q <= 1 covers in the round after the newest seal."""
        record, members = self._job.record_of_job, self._job.state.members
        groups = {peer: member.group for peer, member in members.items()}
        terms = CheckedTerms(record.spec, record.pay_leases(), groups)
        return record.checking.most_units(StepNumber(record.step + 1), group, by_speed, terms)


def validation_due(job: JobJournal) -> RoundNumber:
    """The newest round with an update, if its state is to be validated and was not yet; else 0."""
    state, report = job.state, job.newest_report
    if report is None or report.validation_millionths is not None:
        return NO_ROUND
    is_over = isinstance(state.phase, Finished) or state.draining
    is_wanted = is_over or report.step % job.record_of_job.spec.batch.validate_every == 0
    return RoundNumber(report.step) if is_wanted else NO_ROUND


def _soon(state: RoundState) -> RoundState:
    """The state when members that are about to apply the newest seal have done so.

    Who is first is not to get what the others will do: quotas count them in.
    """
    newest = state.newest_seal

    def ready(member: Member) -> Member:
        is_next = member.applied == newest - 1
        return replace(member, applied=newest) if is_next else member

    members: Mapping[PeerId, Member] = {p: ready(each) for p, each in state.members.items()}
    return replace(state, members=members)
