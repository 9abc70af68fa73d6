"""A job's limits on the chain, as its coordinator keeps them: raised in time, ended when unused.

Satisfies `training.coordinator.ports.Limits`. Each look reads the escrow by our own node: at the
block with the job's confirmations what counts, at the head what is on its way. `Grant` and `End`
are signed here and handed to the market, which relays them. What it did not take within `AWAY`, or
has not brought onto the chain within `PATIENCE`, goes out by our own transaction, if our account
has coin for gas; then it is worked out again from what the chain holds by then.

One order is on its way at a time. Nothing of this is kept: limits are on the chain and only rise,
so an order that is signed again changes nothing that its first copy has done.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil, isinf

from contracts.chain.blocks import Block
from contracts.chain.connection import Call
from contracts.chain.contracts import Contracts
from contracts.chain.sender import Sender
from contracts.governance.escrow import (
    Budget,
    Channel,
    EscrowTimes,
    FundingTerms,
    signing_seconds,
)
from contracts.governance.limits import (
    KEPT_ROUNDS,
    REPORT_ROUNDS,
    limits_owed,
    limits_to_grant,
    rounds_ahead,
)
from contracts.keys.wallet import Wallet
from contracts.terms.errors import TallystickError
from contracts.terms.escrow_messages import MAX_ACCOUNTS, End, Grant, Limit
from contracts.terms.ids import Address
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixSeconds
from contracts.terms.signatures import Signed
from training.coordinator.ports import Earner, Progress, Standings
from training.telling import Rarely, Tell

PATIENCE, AWAY = 30.0, 3.0  # seconds
END_SECONDS = 600
"""That an End counts: whoever holds one back must not end an account that has come back since."""
RELAYED = 10.0
"""Seconds that an order takes from here into a block, where all goes well."""
HOUR, DAY = 3600.0, 86_400.0

Order = Signed[Grant] | Signed[End]
HandIn = Callable[[Order], Awaitable[None]]
"""Gives an order to the market."""


@dataclass
class _Sent:
    """An order that is on its way."""

    order: Order
    at: float  # of `monotonic`
    is_handed_in: bool = False


class ChainLimits:
    """Of one job. Its sender's account is the coordinator's."""

    def __init__(
        self,
        contracts: Contracts,
        spec: JobSpec,
        wallet: Wallet,
        sender: Sender,
        hand_in: HandIn,
        tell: Tell,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._contracts, self._spec, self._job = contracts, spec, spec.job()
        self._wallet, self._sender, self._hand_in = wallet, sender, hand_in
        self._tell, self._tell_rarely, self._monotonic = tell, Rarely(tell), monotonic
        self._terms = FundingTerms(spec.poster, spec.burst, spec.rate)
        self._times: EscrowTimes | None = None
        self._sent: _Sent | None = None

    async def look(self, progress: Progress) -> Standings:
        """See `Limits.look`."""
        chain = self._contracts.chain
        head = await chain.head()
        # `confirmations` counts the block itself, the node those on top of it.
        above = self._spec.confirmations - 1
        at = await chain.block(max(0, head.number - above)) if above else head
        accounts = progress.earners
        counts = await self._standings(accounts, at)
        newest = await self._standings(accounts, head) if above else counts
        if not newest.budget.closed_at and not await self._is_on_its_way(newest):
            now = await chain.next_time()
            span = head.timestamp - at.timestamp + RELAYED
            order = await self._due(progress, newest, now, span)
            if order is not None:
                self._sent = _Sent(order, self._monotonic())
                await self._give(self._sent)
        return counts

    async def _standings(self, accounts: Iterable[Address], at: Block) -> Standings:
        escrow, places = self._contracts.escrow, [(self._job, each) for each in accounts]
        budget = (await escrow.budgets([self._job], at))[self._job]
        channels = await escrow.channels(places, at)
        return Standings(budget, {account: each for (_, account), each in channels.items()})

    # -------------------------------------------------------------------------- what is sent

    async def _is_on_its_way(self, newest: Standings) -> bool:
        """Whether what was sent last is still to be waited for."""
        sent = self._sent
        if sent is None:
            return False
        if _is_done(sent.order, newest.channels):
            self._sent = None
            return False
        if self._monotonic() - sent.at < (PATIENCE if sent.is_handed_in else AWAY):
            if not sent.is_handed_in:
                await self._give(sent)
            return True
        self._sent = None
        await self._send_ourselves(sent.order)
        return True  # the next look sees what has become of it

    async def _give(self, sent: _Sent) -> None:
        """Hand it in; a market that is away, or refuses it, is no reason to stop."""
        try:
            await self._hand_in(sent.order)
            sent.is_handed_in = True
        except TallystickError as error:
            self._tell_rarely("order_waits", code=error.code, reason=error.message)

    async def _send_ourselves(self, order: Order) -> None:
        if not await self._contracts.chain.balance(self._wallet.account):
            self._tell_rarely("order_waits", code="no_gas", reason="our account has no coin")
            return
        try:
            await self._sender.send(order.message.digest().hex(), self._call(order))
            self._tell("order_sent", order=order.message.digest())
        except TallystickError as error:
            self._tell_rarely("order_waits", code=error.code, reason=error.message)

    def _call(self, order: Order) -> Call:
        escrow, header = self._contracts.escrow, self._spec.header()
        match order.message:
            case Grant() as grant:
                return escrow.grant(header, Signed(grant, order.signature))
            case End() as end:
                return escrow.end(header, Signed(end, order.signature))

    # --------------------------------------------------------------------------- what is due

    async def _due(
        self, progress: Progress, newest: Standings, now: UnixSeconds, confirming: float
    ) -> Order | None:
        """The next order; `confirming`: seconds until what is sent now counts."""
        if limits := self._limits_due(progress, newest, now, confirming):
            total = sum(each.limit for each in limits)
            self._tell("limits_granted", accounts=len(limits), total=total)
            grant = Grant(job=self._job, limits=limits, by=await self._by(now))
            return self._wallet.sign(grant, self._contracts.deployment.domain)
        if gone := _to_end(progress, newest.channels):
            self._tell("accounts_ended", accounts=len(gone))
            end = End(job=self._job, accounts=gone, by=await self._by(now, END_SECONDS))
            return self._wallet.sign(end, self._contracts.deployment.domain)
        return None

    async def _by(self, now: UnixSeconds, most: int = 2**40) -> UnixSeconds:
        """Until when a signature counts: nearly as long as it may, as clocks differ, or `most`."""
        if self._times is None:
            self._times = await self._contracts.escrow.times(await self._contracts.chain.head())
        return UnixSeconds(now + min(most, signing_seconds(self._times.margin)))

    def _limits_due(
        self, progress: Progress, newest: Standings, now: UnixSeconds, confirming: float
    ) -> tuple[Limit, ...]:
        channels = newest.channels
        bonded = {
            account: each
            for account, each in progress.earners.items()
            if channels.get(account, Channel()).stake >= each.stake
        }
        available = available_at(newest.budget, self._terms, now)
        if progress.is_over:
            owed = limits_owed({name: each.pay for name, each in bonded.items()}, channels)
            return owed[:MAX_ACCOUNTS]
        members = {n: e.pay for n, e in bonded.items() if e.works and not e.is_outside}
        auditors = {n: e.pay for n, e in bonded.items() if e.is_outside}
        rounds = rounds_for(progress, bonded.values(), self._spec.burst, confirming)
        found = limits_to_grant(members, channels, rounds, available)
        left = available - sum(
            each.limit - channels.get(each.account, Channel()).limit for each in found
        )
        found += limits_to_grant(auditors, channels, REPORT_ROUNDS, left)
        return found[:MAX_ACCOUNTS]


def available_at(budget: Budget, terms: FundingTerms, now: int) -> int:
    """What bucket and budget allow to grant at `now`."""
    return max(0, min(budget.allowance_at(terms, now), budget.free))


def rounds_for(progress: Progress, earners: Iterable[Earner], burst: int, confirming: float) -> int:
    """Rounds for which limits leave room: an hour's at first, a day's later, as the bucket allows.

    No more than a bucket holds, so that a limit is raised when half of that is used and not all the
    time; nor more than the job has left, but for what its last round needs to begin.

    Args:
        progress: How far the job is.
        earners: Whose limits draw on the bucket.
        burst: What the bucket holds at most.
        confirming: Seconds until what is sent now counts.
    """
    a_round = sum(each.pay.round for each in earners if each.works)
    most = burst // max(1, a_round)
    pace = progress.seconds_a_round
    waiting = 0 if isinf(pace) else ceil(confirming / pace)
    span = max(DAY if progress.seconds_of_work >= DAY else HOUR, 3 * confirming)
    period = most if isinf(pace) else min(most, ceil(span / pace))
    return min(rounds_ahead(period, waiting), progress.rounds_left + 2 * KEPT_ROUNDS)


def _is_done(order: Order, channels: Mapping[Address, Channel]) -> bool:
    """Whether the chain ran it: what it skips, it skips for a reason, and is worked out again."""

    def of(account: Address) -> Channel:
        return channels.get(account, Channel())

    match order.message:
        case Grant(limits=limits):
            return any(of(each.account).limit >= each.limit for each in limits)
        case End(accounts=accounts):
            return all(of(account).end for account in accounts)


def _to_end(progress: Progress, channels: Mapping[Address, Channel]) -> tuple[Address, ...]:
    """Accounts that are gone, and hold a limit or a stake that others could use."""
    gone = (account for account, each in progress.earners.items() if each.is_gone)
    held = ((account, channels.get(account, Channel())) for account in sorted(gone))
    found = (account for account, each in held if not each.end and (each.limit or each.stake))
    return tuple(found)[:MAX_ACCOUNTS]
