"""When does an agent let its peers work, by what it sees itself?"""

from dataclasses import replace
from typing import Any

import pytest

from contracts.governance.claims import PayTree, SealedPay
from contracts.governance.escrow import Budget, Channel, EscrowTimes
from contracts.governance.limits import lag_of, planned_round
from contracts.governance.pay import PayLeaf
from contracts.terms.amounts import BaseUnits, PricePerPflop
from contracts.terms.errors import ChainUnreachable, Refused
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixMillis
from market.bodies.jobs import StepReport
from tallystick.provider.limits import LOOK_SECONDS, Guard, OwnPay, check_tail, round_seconds
from tests.support.history import DOMAIN, make_spec, make_wallet, seal_over
from tests.unit.tallystick.provider.own_chain import OwnChain

ANN = make_wallet("ann").account
PRICE = PricePerPflop(10**9)
SPEC = make_spec(confirmations=3)
PLANNED = planned_round(SPEC, [PRICE])


def sealed(
    step: int, earned: int, vested: int = 0, *, lost: int = 0, last: bool = False,
    spec: JobSpec = SPEC,
) -> SealedPay:  # fmt: skip
    """A seal by which Ann has earned so much."""
    leaf = PayLeaf(ANN, BaseUnits(earned), BaseUnits(vested))
    found = sealed_for(step, leaf, last=last, spec=spec)
    return replace(found, forfeited={ANN: BaseUnits(lost)}) if lost else found


def sealed_for(step: int, *leaves: PayLeaf, last: bool = False, spec: JobSpec = SPEC) -> SealedPay:
    """A seal with this pay."""
    pay = tuple(sorted(leaves, key=lambda leaf: leaf.account))
    seal = seal_over(spec.job(), step, PayTree(pay), last=last)
    return SealedPay(make_wallet("coordinator").sign(seal, DOMAIN), pay)


def guard_of(chain: OwnChain) -> Guard:
    moments = iter(range(0, 10_000, int(LOOK_SECONDS)))
    return Guard(ANN, chain.on_chain().contracts, lambda: next(moments))


async def why(guard: Guard, pay: SealedPay | None) -> str | None:
    idle = await guard.why_idle(SPEC, pay, stake=5, prices=[PRICE])
    return None if idle is None else idle.why


@pytest.mark.parametrize(
    ("channel", "budget", "words"),
    [
        (Channel(limit=2 * PLANNED, stake=5), Budget(), None),
        (Channel(limit=2 * PLANNED, stake=4), Budget(), "0.000004 of the 0.000005 tokens"),
        (Channel(limit=2 * PLANNED - 1, stake=5), Budget(), "leaves no room for 2 rounds"),
        (Channel(limit=2 * PLANNED, stake=5, end=7), Budget(), "our account has ended"),
        (Channel(limit=2 * PLANNED, stake=5), Budget(closed_at=7), "its poster has closed it"),
    ],
)
async def test_why_idle__before_the_first_round__says_what_is_missing(
    channel: Channel, budget: Budget, words: str | None
) -> None:
    chain = OwnChain(channel=channel, budget=budget)

    found = await why(guard_of(chain), None)

    assert chain.asked_for == [SPEC.confirmations - 1]
    assert found is None if words is None else words in (found or "")


async def test_why_idle__pay_that_does_not_vest__stops_after_lag_and_not_for_what_is_lost() -> None:
    chain, lag = OwnChain(channel=Channel(limit=10**12, stake=5)), lag_of(SPEC)
    guard = guard_of(chain)
    seals = [sealed(step, 100 * step) for step in range(1, lag + 2)]

    found = [await why(guard, each) for each in seals]
    lost = await why(guard, sealed(lag + 2, 100 * (lag + 2), lost=200))

    assert found[:-1] == [None] * lag and lost is None
    assert found[-1] is not None and "have not vested" in found[-1]


async def test_why_idle__all_items_are_sealed__stays_for_the_audits_whatever_waits() -> None:
    chain, lag = OwnChain(channel=Channel(limit=10**12, stake=5)), lag_of(SPEC)
    guard, late = guard_of(chain), sealed(lag + 1, 100 * (lag + 1))
    for step in range(1, lag + 1):
        await why(guard, sealed(step, 100 * step))
    items = SPEC.batch.steps * SPEC.batch.units_per_step
    done = late.seal.message.model_copy(update={"next": items})

    over = replace(late, seal=make_wallet("coordinator").sign(done, DOMAIN))

    assert await why(guard, over) is None
    assert await why(guard, late) is not None


async def test_why_idle__limit_is_short__stays_where_it_works_until_lag_is_above_it() -> None:
    chain, lag = OwnChain(channel=Channel(limit=300, stake=5)), lag_of(SPEC)
    guard, found = guard_of(chain), list[bool | None]()
    for step in range(1, lag + 5):
        pay = sealed(step, 100 * step, vested=100 * step)
        idle = await guard.why_idle(SPEC, pay, stake=5, prices=[PRICE])
        found.append(None if idle is None else idle.may_stay)

    before = await guard_of(chain).why_idle(SPEC, None, stake=5, prices=[PricePerPflop(10**15)])

    assert found == [*[True] * (lag + 3), False]
    assert before is not None and not before.may_stay


async def test_why_idle__no_seal_counts_its_work__stops_after_lag() -> None:
    guard, lag = guard_of(OwnChain(channel=Channel(limit=100 * PLANNED, stake=5))), lag_of(SPEC)
    left_out = [replace(sealed(3, PLANNED), left_out=number) for number in (lag - 1, lag)]

    assert [await why(guard, pay) for pay in left_out] == [
        None,
        f"none of our work in its last {lag} rounds was sealed",
    ]


async def test_why_idle__last_seal_is_there__its_peer_ends_by_itself() -> None:
    assert await why(guard_of(OwnChain()), sealed(3, 9, last=True)) is None


async def test_why_idle__node_is_away__waits_before_the_first_answer_and_then_goes_on() -> None:
    chain = OwnChain(channel=Channel(limit=2 * PLANNED, stake=5))
    chain.error = ChainUnreachable("away")
    guard = guard_of(chain)

    before = await why(guard, None)
    chain.error = None
    there = await why(guard, None)
    chain.error = ChainUnreachable("away")
    after = await why(guard, None)

    assert before is not None and "the chain does not say" in before
    assert there is after is None


def test_own_pay__seals_were_missed__shares_what_came_by_rounds_and_the_first_has_none() -> None:
    pay = OwnPay(ANN, lag_rounds=10)

    pay.add(sealed(40, 900))
    first = pay.accrual(planned=7).round
    pay.add(sealed(43, 1200, 100))
    pay.add(sealed(42, 1100))  # older

    accrual = pay.accrual(planned=7)
    assert (first, accrual.round, accrual.earned, accrual.vested) == (7, 100, 1200, 100)


def test_check_tail__pay_vests_too_late__names_the_tail_that_would_fit() -> None:
    times = EscrowTimes(margin=60, announce=10, execute=20, tail=100)
    rounds = lag_of(SPEC)

    check_tail(SPEC, times, None)
    check_tail(SPEC, times, 10 / rounds)
    with pytest.raises(Refused, match="a TAIL of 101 s would fit"):
        check_tail(SPEC, times, 10.5 / rounds)


def report(step: int, at: int) -> Any:
    return StepReport(step=step, loss_millionths=0, tokens_per_second=1, at=UnixMillis(at))


def test_round_seconds__of_the_reports_that_are_shown() -> None:
    assert round_seconds([]) is round_seconds([report(1, 5)]) is None
    assert round_seconds([report(7, 9000), report(5, 1000)]) == 4.0
