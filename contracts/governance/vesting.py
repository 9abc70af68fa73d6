"""When work that a seal holds becomes pay: the fold from sealed steps to earned and vested. Pure.

Step t of a peer vests in the first seal by which every draw of that peer up to step t + W is
settled, and not while it owes a report or is frozen (`checking.Standing`); the `last` seal vests
the rest. Where nobody is drawn that is the seal of step t + W. What is frozen, or forfeited, is
earned and does not vest: so it stays in escrow, and nobody gains by it.

The value is taken of a lease's cumulative FLOPs, so that rounding never adds up: earned =
floor(cumulative FLOPs x price / 1e15); over the FLOPs that were resolved, vested or forfeited, the
same; a forfeit is the difference that it makes to that.

Invariants: what an account earned, what of it has vested and what is forfeited never fall;
vested + forfeited <= earned; after the last seal they are equal; the result is the same whether
steps are folded one by one or all at once. Source: docs/protocol.md 6.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from contracts.governance.checking import Forfeit, Standing
from contracts.governance.pay import Lease, PayLeaf
from contracts.terms.amounts import BaseUnits, Flops, PricePerPflop, pay_for
from contracts.terms.errors import InvariantBroken
from contracts.terms.ids import Address, PeerId, StepNumber

NO_STEP = StepNumber(0)

Work: TypeAlias = Mapping[PeerId, Flops]


@dataclass(frozen=True)
class PayState:
    """All that later pay depends on, after the seal of `step` (0: before the first)."""

    window: int  # W: steps between being earned and vesting
    step: StepNumber = NO_STEP
    earned: Work = field(default_factory=dict)  # cumulative
    resolved: Work = field(default_factory=dict)  # cumulative: vested or forfeited
    forfeits: tuple[tuple[PeerId, Flops, Flops], ...] = ()  # resolved from, to
    waiting: tuple[tuple[StepNumber, Work], ...] = ()  # earned and not resolved, oldest first
    frozen: frozenset[PeerId] = frozenset()
    ended: bool = False


def advance(
    state: PayState, step: StepNumber, work: Work, standing: Standing, *, last: bool
) -> PayState:
    """The state after one more sealed step with `work`; steps come one by one, none after the last.

    Raises:
        InvariantBroken: `step` is not the next one. Callers check seals before they count them.
    """
    if state.ended or step != state.step + 1:
        raise InvariantBroken(f"step {step} cannot follow step {state.step}")
    fresh = _sum([work, standing.audits])
    waiting = (*state.waiting, (step, fresh))
    state = replace(
        state,
        step=step,
        earned=_sum([state.earned, fresh]),
        waiting=waiting,
        frozen=standing.frozen,
        ended=last,
    )
    for forfeit in standing.forfeits:
        state = _forfeit(state, forfeit)
    return _vest(state, standing)


def pay_after(state: PayState, leases: Mapping[PeerId, Lease]) -> tuple[PayLeaf, ...]:
    """What each account has earned and vested in `state`, sorted by account.

    Coordinator, members, market and audit all call this one function. Accounts whose
    work is not yet worth a base unit are left out.
    """
    earned: Counter[Address] = Counter()
    vested: Counter[Address] = Counter()
    forfeited = _forfeited(state, leases)
    for peer, flops in state.earned.items():
        lease = leases[peer]
        resolved = pay_for(state.resolved.get(peer, Flops(0)), lease.price)
        vested[lease.account] += resolved - forfeited[peer]
        earned[lease.account] += pay_for(flops, lease.price)
    return tuple(
        PayLeaf(account, BaseUnits(earned[account]), BaseUnits(vested[account]))
        for account in sorted(earned)
        if earned[account]
    )


def forfeited_by(state: PayState, leases: Mapping[PeerId, Lease]) -> Counter[Address]:
    """What each account has lost of what it earned."""
    lost: Counter[Address] = Counter()
    for peer, amount in _forfeited(state, leases).items():
        lost[leases[peer].account] += amount
    return lost


def _forfeited(state: PayState, leases: Mapping[PeerId, Lease]) -> Counter[PeerId]:
    """Base units that each peer has lost."""
    lost: Counter[PeerId] = Counter()
    for peer, start, end in state.forfeits:
        price: PricePerPflop = leases[peer].price
        lost[peer] += pay_for(end, price) - pay_for(start, price)
    return lost


def _forfeit(state: PayState, forfeit: Forfeit) -> PayState:
    """What waits of a peer, or of one of its steps, is lost."""
    peer = forfeit.peer
    taken = [
        (step, work)
        for step, work in state.waiting
        if peer in work and forfeit.step in (None, step)
    ]
    flops = Flops(sum(work[peer] for _, work in taken))
    if not flops:
        return state
    start = state.resolved.get(peer, Flops(0))
    lost = {step for step, _ in taken}
    return replace(
        state,
        resolved=_sum([state.resolved, {peer: flops}]),
        forfeits=(*state.forfeits, (peer, start, Flops(start + flops))),
        waiting=tuple(
            (step, _without(work, {peer}) if step in lost else work) for step, work in state.waiting
        ),
    )


def _vest(state: PayState, standing: Standing) -> PayState:
    """What is ripe is resolved."""
    ripe: list[Work] = []
    waiting: list[tuple[StepNumber, Work]] = []
    for step, work in state.waiting:
        due = {peer for peer in work if _is_ripe(state, standing, step, peer)}
        ripe.append({peer: work[peer] for peer in due})
        left = _without(work, due)
        if left:
            waiting.append((step, left))
    return replace(state, resolved=_sum([state.resolved, *ripe]), waiting=tuple(waiting))


def _is_ripe(state: PayState, standing: Standing, step: StepNumber, peer: PeerId) -> bool:
    if state.ended:
        return True
    if peer in standing.owing or peer in standing.frozen:
        return False
    known = standing.settled_for(peer, state.step)
    return step + state.window <= known


def _without(work: Work, peers: set[PeerId]) -> Work:
    return {peer: flops for peer, flops in work.items() if peer not in peers} if peers else work


def _sum(works: Iterable[Work]) -> dict[PeerId, Flops]:
    summed: dict[PeerId, Flops] = {}
    for work in works:
        for peer, flops in work.items():
            summed[peer] = Flops(summed.get(peer, 0) + flops)
    return summed
