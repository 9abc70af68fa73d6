"""Who may be given work now: whose bond and limit are confirmed on the chain, and suffice.

What the chain holds is looked up again and again; what seals say is known at once. So an account
stops before work that no seal could pay, however old the newest look is: a limit never falls while
its account works. Of nobody who was not looked up yet anything is known, and it waits. How much of
its pay may wait to vest is for an account itself to say: it stops by leaving.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Set
from contextlib import suppress

from contracts.governance.escrow import Channel
from contracts.governance.limits import Idle, lag_of, planned_round, why_idle
from contracts.terms.digest import peer_id
from contracts.terms.errors import Refused, Unavailable
from contracts.terms.ids import Address, PeerId
from contracts.terms.messages import LeaseAccept
from contracts.terms.moments import UnixMillis
from training.coordinator.journal import JobJournal
from training.coordinator.ports import Clock, Earner, Limits, Progress, Standings
from training.rounds.events import Controlled
from training.rounds.state import Finished
from training.telling import Rarely, Tell

GONE_AFTER = 3_600_000
"""Milliseconds, `lease_grace` at least, that no machine of an account was here before it ends."""
PACE_SEALS = 32
"""Looks at which a new seal was there, from the oldest of which the pace of work is taken."""
NO_PACE = float("inf")


class Limiting:
    """Looks, has limits raised, and answers who may work."""

    def __init__(self, job: JobJournal, limits: Limits, *, clock: Clock, tell: Tell) -> None:
        self._job, self._limits, self._clock, self._tell = job, limits, clock, tell
        self._tell_rarely = Rarely(tell)
        self._lag = lag_of(job.record_of_job.spec)
        self._leases: dict[PeerId, LeaseAccept] = {}  # of the roster
        self._standings, self._has_looked = Standings(), False
        self._idle: Mapping[Address, Idle | None] = {}
        self._seen: tuple[object, ...] | None = None  # what it follows from
        self._may: Set[PeerId] | None = None
        self._may_for: tuple[object, ...] = ()  # what it follows from
        self._looking = asyncio.Lock()
        self._away_since: dict[Address, UnixMillis] = {}
        self._seals = deque[tuple[int, UnixMillis]](maxlen=PACE_SEALS)
        self._began_at: UnixMillis | None = None

    async def trust(self, leases: Iterable[LeaseAccept]) -> None:
        """Know who may come; the whole roster."""
        known, self._leases = self._leases, {peer_id(each.session_key): each for each in leases}
        if self._leases.keys() - known.keys():
            await self.look()  # they are on their way

    def why_idle(self, account: Address) -> Idle | None:
        """Why an account is not given work now; None if it is.

        Until the chain was looked at members go on as before this start.
        """
        job = self._job
        if not self._has_looked and any(m.owner == account for m in job.state.members.values()):
            return None
        peers = frozenset(job.state.members)
        seen = (job.record_of_job.step, peers, self._leases, self._standings)
        if self._seen is None or any(
            a is not b and a != b for a, b in zip(self._seen, seen, strict=True)
        ):
            self._seen, self._idle = seen, self._found_idle()
        return self._idle.get(account, "no_bond")

    def may_work(self) -> frozenset[PeerId] | None:
        """Peers whose items go out and whose claims are merged; None: all.

        Of members those whose account is not idle; of who has left its claims alone are left. As
        before this start until the chain was looked at: nobody loses a round because we came back.
        """
        if not self._has_looked:
            return self._job.state.may_work
        job = self._job
        state, record = job.state, job.record_of_job
        seen = record, state.members, self._leases, self._standings
        if any(a is not b for a, b in zip(self._may_for, seen, strict=False)) or not self._may_for:
            idle = {m.peer for m in state.members.values() if self.why_idle(m.owner) is not None}
            self._may = record.leases.keys() - idle if idle else None
            self._may_for = seen
        is_over = isinstance(state.phase, Finished) or state.draining
        return None if is_over or self._may is None else frozenset(self._may)

    def _found_idle(self) -> dict[Address, Idle | None]:
        found = dict[Address, Idle | None]()
        for account, leases in self._leases_of_all().items():
            why = why_idle(
                self._earner(account, leases).pay,
                self._standings.channels.get(account, Channel()),
                self._standings.budget,
                stake=_stake(leases),
                lag_rounds=self._lag,
            )
            found[account] = None if why == "unvested" else why
        return found

    async def look(self) -> None:
        """Look at the chain once, and have done what follows; a failure is told."""
        async with self._looking:
            progress = self._progress()
            try:
                standings = await self._limits.look(progress)
            except (Unavailable, Refused) as error:
                self._tell_rarely("limits_wait", code=error.code, reason=error.message)
                return
            self._has_looked = True
            if standings != self._standings:
                self._standings = standings
                self._job.changes.mark()
            with suppress(Unavailable):  # what comes next is recorded with the same
                self._job.go_on(self._clock())
            if standings.budget.closed_at and not self._job.state.stopping:
                self._tell("job_closed", step=self._job.state.round)
                self._job.record(Controlled("stop", self._clock()))

    # -------------------------------------------------------------------------------- progress

    def _leases_of_all(self) -> dict[Address, list[LeaseAccept]]:
        """Leases by which somebody works, or may come to."""
        job, found = self._job, defaultdict[Address, list[LeaseAccept]](list)
        sealed = job.record_of_job.leases
        members = {peer: sealed[peer] for peer in job.state.members if peer in sealed}
        for lease in (self._leases | members).values():
            found[lease.account].append(lease)
        return found

    def _earner(self, account: Address, leases: list[LeaseAccept]) -> Earner:
        planned = planned_round(self._job.record_of_job.spec, [each.price for each in leases])
        return Earner(self._job.pay.accrual(account, planned), _stake(leases), works=bool(leases))

    def _progress(self) -> Progress:
        job, now = self._job, self._clock()
        record, state = job.record_of_job, job.state
        self._note_pace(now)
        leases = self._leases_of_all()
        accounts = leases.keys() | {each.account for each in record.leases.values()}
        gone = self._gone(accounts, now)
        earners = {account: self._earner(account, leases.get(account, [])) for account in accounts}
        for account in gone:
            pay = earners[account].pay
            if not pay.at_risk:
                earners[account] = Earner(pay, earners[account].stake, is_gone=True)
        if (audit := record.spec.rules.audit) is not None:
            planned = planned_round(record.spec, [audit.price])
            for each in record.outside.auditors:
                pay = job.pay.accrual(each.account, planned)
                outside = Earner(pay, each.stake, works=True, is_outside=True)
                earners.setdefault(each.account, outside)
        is_over = isinstance(state.phase, Finished)
        layout = state.terms.layout
        items_left = layout.ordered_items - state.sealed_items
        return Progress(
            earners=earners,
            rounds_left=0
            if is_over or state.draining
            else -(-items_left // layout.items_per_round),
            seconds_a_round=self._pace(),
            seconds_of_work=0 if self._began_at is None else (now - self._began_at) / 1000,
            is_over=is_over,
        )

    def _gone(self, accounts: Iterable[Address], now: UnixMillis) -> set[Address]:
        """Accounts no machine of which was here for long, though others were, and it had a limit.

        Where nobody is here it may be we who are cut off, and who waits for a limit waits for us.
        """
        members = self._job.state.members.values()
        here = {member.owner for member in members if member.is_here}
        away = {
            account
            for account in accounts
            if here and account not in here and self.why_idle(account) != "no_limit"
        }
        self._away_since = {each: self._away_since.get(each, now) for each in away}
        longest = max(GONE_AFTER, self._job.state.terms.lease_grace)
        return {account for account, at in self._away_since.items() if now - at >= longest}

    def _note_pace(self, now: UnixMillis) -> None:
        step = self._job.record_of_job.step
        if self._job.state.started and self._began_at is None:
            self._began_at = now
        if self._job.state.started and (not self._seals or self._seals[-1][0] < step):
            self._seals.append((step, now))

    def _pace(self) -> float:
        if len(self._seals) < 2:
            return NO_PACE
        (first, began), (last, at) = self._seals[0], self._seals[-1]
        return max(0.001, (at - began) / 1000 / (last - first))


def _stake(leases: Iterable[LeaseAccept]) -> int:
    """An account has one bond in a job: the most that a lease of it asks for."""
    return max((lease.stake for lease in leases), default=0)
