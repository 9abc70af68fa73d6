"""When work that a seal holds becomes pay: the fold from sealed steps to earned and vested. Pure.

With `checking: off` nobody is drawn, so step t vests in the seal of step t + W, and everything in
the `last` seal. The value is taken of a lease's cumulative FLOPs, so that rounding never adds up:
earned = floor(cumulative FLOPs x price / 1e15), vested the same over the part that has vested.

Invariants: what is earned and what has vested never falls; vested <= earned; after the last seal
they are equal; the result is the same whether steps are folded one by one or all at once.
Source: PROTOCOL section 6.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from contracts.governance.pay import PayLeaf
from contracts.terms.amounts import BaseUnits, Flops, PricePerPflop, pay_for
from contracts.terms.errors import InvariantBroken
from contracts.terms.ids import Address, PeerId, StepNumber

NO_STEP = StepNumber(0)


@dataclass(frozen=True)
class Lease:
    """What pay needs to know of a LeaseAccept: whose work it is and at what price."""

    account: Address
    price: PricePerPflop


@dataclass(frozen=True)
class StepFacts:
    """What one seal says about work: FLOPs per peer that count as done in its step."""

    step: StepNumber
    work: Mapping[PeerId, Flops]
    last: bool = False


@dataclass(frozen=True)
class PayState:
    """All that later pay depends on, after the seal of `step` (0: before the first)."""

    window: int  # W: steps between being earned and vesting
    step: StepNumber = NO_STEP
    earned: Mapping[PeerId, Flops] = field(default_factory=dict)  # cumulative
    vested: Mapping[PeerId, Flops] = field(default_factory=dict)  # cumulative
    waiting: tuple[StepFacts, ...] = ()  # earned and not vested, oldest first
    ended: bool = False


def advance(state: PayState, facts: StepFacts) -> PayState:
    """The state after one more sealed step; steps come one by one, none after the last.

    Raises:
        InvariantBroken: `facts` is not the next step. Callers check seals before they count them.
    """
    if state.ended or facts.step != state.step + 1:
        raise InvariantBroken(f"step {facts.step} cannot follow step {state.step}")
    waiting = (*state.waiting, facts)
    ripe = len(waiting) if facts.last else max(0, len(waiting) - state.window)
    return replace(
        state,
        step=facts.step,
        earned=_add(state.earned, (facts,)),
        vested=_add(state.vested, waiting[:ripe]),
        waiting=waiting[ripe:],
        ended=facts.last,
    )


def pay_after(state: PayState, leases: Mapping[PeerId, Lease]) -> tuple[PayLeaf, ...]:
    """What each account has earned and vested in `state`, sorted by account.

    Coordinator, members, ledger, settlement and audit all call this one function. Accounts whose
    work is not yet worth a base unit are left out, and so are the reserved accounts `FROZEN` and
    `FORFEITED`, which stay empty while nobody is drawn.
    """
    earned = _by_account(state.earned, leases)
    vested = _by_account(state.vested, leases)
    return tuple(
        PayLeaf(account, BaseUnits(earned[account]), BaseUnits(vested[account]))
        for account in sorted(earned)
        if earned[account]
    )


def _add(total: Mapping[PeerId, Flops], steps: Iterable[StepFacts]) -> Mapping[PeerId, Flops]:
    summed = dict(total)
    for step in steps:
        for peer, work in step.work.items():
            summed[peer] = Flops(summed.get(peer, 0) + work)
    return summed


def _by_account(work: Mapping[PeerId, Flops], leases: Mapping[PeerId, Lease]) -> Counter[Address]:
    amounts: Counter[Address] = Counter()
    for peer, flops in work.items():
        amounts[leases[peer].account] += pay_for(flops, leases[peer].price)
    return amounts
