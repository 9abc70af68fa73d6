"""q covers the money at risk in every reachable state, to the base unit, and is drawn that often.

A state is reached as in a job: the router gives a peer some work, never more than it may; pay is
taken of all FLOPs that it ever did, rounded down, as seals do; what a conviction forfeits is
what of that has not vested.
"""

from dataclasses import replace
from fractions import Fraction
from itertools import accumulate
from math import isqrt
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from contracts.terms.amounts import BaseUnits, Flops, PricePerPflop, pay_for
from contracts.terms.digest import digest
from contracts.terms.ids import StepNumber
from verification.draws import economics
from verification.draws.economics import Terms
from verification.draws.selection import is_drawn

parts = st.builds(Fraction, st.integers(0, 12), st.just(12))
detections = st.sampled_from([Fraction(1), Fraction(99, 100), Fraction(2, 3), Fraction(1, 7)])
terms = st.builds(
    Terms,
    floor=st.builds(Fraction, st.integers(1, 10), st.just(100)),
    sums=st.just(Fraction(1, 10)),
    repeats=st.builds(Fraction, st.integers(1, 5), st.just(5)),
    margin=st.builds(Fraction, st.integers(10, 25), st.just(10)),
    detection=detections,
    window=st.integers(0, 6),
)
phis = st.one_of(st.none(), parts)
STEADY = Terms(Fraction(1, 100), Fraction(0), Fraction(1), Fraction(5, 4), Fraction(1), window=3)
amounts = st.integers(0, 300).map(BaseUnits)
values = st.integers(1, 300).map(BaseUnits)


# ----------------------------------------------------------------------------- money at risk


@settings(report_multiple_bugs=False)
@given(
    terms=terms,
    phi=phis,
    stake=st.integers(0, 200),
    price=st.integers(1, 9),
    wanted=st.lists(st.integers(0, 40 * 10**15), min_size=9, max_size=12),
)
@example(terms=STEADY, phi=Fraction(0), stake=20, price=1, wanted=[40 * 10**15] * 12)
def test_rate__every_reachable_state__covers_the_money_at_risk(
    terms: Terms, phi: Fraction | None, stake: int, price: int, wanted: list[int]
) -> None:
    """The chance to be found times all that is lost is m times what a cheat gains, or more."""
    done: dict[StepNumber, Flops] = {}
    ceiling, own, power = PricePerPflop(price), BaseUnits(stake), economics.power(terms, phi)
    for number, flops in enumerate(wanted, start=1):
        step = StepNumber(number)
        recent = economics.waiting(done, ceiling, step=step, window=terms.window)
        most = economics.most_value(terms, stake=own, waiting=recent, power=power)
        work = min(flops, economics.most_work(most, ceiling))
        worth = economics.value(Flops(work), ceiling)
        rate = economics.needed(terms, terms.floor, worth, stake + recent, power)
        done[step] = Flops(work)
        gained, lost = pay_of_last_step(done, price, terms.window)
        assert rate is not None
        assert rate <= 1
        assert rate * seen(terms, phi) * (stake + lost) >= terms.margin * gained


def seen(terms: Terms, phi: Fraction | None) -> Fraction:
    """What follows a draw, told as a story: a friend lies, and some lies are looked at again."""
    friend = phi or Fraction(0)
    return terms.detection * (1 - friend) + terms.detection * friend * terms.repeats


def pay_of_last_step(done: dict[StepNumber, Flops], price: int, window: int) -> tuple[int, int]:
    """(what the last step added to pay, what has not vested when it is judged)."""
    sums = [0, *accumulate(done[step] for step in sorted(done))]
    paid = [pay_for(Flops(flops), PricePerPflop(price)) for flops in sums]
    return paid[-1] - paid[-2], paid[-1] - paid[max(0, len(done) - 1 - window)]


# -------------------------------------------------------------------------- shape of the rate


@given(terms=terms, phi=phis, worth=amounts, stake=amounts, recent=amounts, more=amounts)
def test_rate__more_or_less_money__moves_the_right_way(
    terms: Terms, phi: Fraction | None, worth: int, stake: int, recent: int, more: int
) -> None:
    """More at risk, or better auditors, never draw more; more value never draws less."""
    power = economics.power(terms, phi)
    now: dict[str, Any] = {"value": worth, "stake": stake, "waiting": recent, "power": power}
    rate = economics.rate(terms, **now)

    assert terms.floor <= rate <= 1
    assert economics.rate(terms, **{**now, "stake": stake + more}) <= rate
    assert economics.rate(terms, **{**now, "waiting": recent + more}) <= rate
    assert economics.rate(terms, **{**now, "power": terms.detection}) <= rate
    assert economics.rate(terms, **{**now, "value": worth + more}) >= rate


@given(terms=terms, phi=phis, worth=values, stake=amounts, recent=amounts)
def test_bounds__one_more_or_one_less__is_not_covered(
    terms: Terms, phi: Fraction | None, worth: BaseUnits, stake: BaseUnits, recent: BaseUnits
) -> None:
    """The most value and the least stake are the last that q <= 1 covers."""
    power = economics.power(terms, phi)

    def needed(value: int, stake: int, recent: int) -> Fraction:
        rate = economics.needed(terms, terms.floor, value, stake + recent, power)
        assert rate is not None
        return rate

    if terms.margin != power:
        most = economics.most_value(terms, stake=stake, waiting=recent, power=power)
        assert needed(most, stake, recent) <= 1 < needed(most + 1, stake, recent)
    least = economics.least_stake(terms, value=worth, power=power)
    assert least is not None
    assert needed(worth, least, 0) <= 1
    assert least == 0 or needed(worth, least - 1, 0) > 1


# ------------------------------------------------------------------------------------ reports


@given(terms=terms, worth=values, stake=amounts, recent=amounts)
def test_repeat_rate__any_auditor__stamping_never_pays(
    terms: Terms, worth: BaseUnits, stake: BaseUnits, recent: BaseUnits
) -> None:
    """A match that is signed unseen is repeated often enough, if any rate is enough."""
    rate = economics.repeat_rate(terms, value=worth, stake=stake, waiting=recent)
    work = economics.rate(
        replace(terms, floor=terms.repeats), value=worth, stake=stake, waiting=recent,
        power=terms.detection,
    )  # fmt: skip

    assert rate == work >= terms.repeats  # so what is said of work holds of reports
    if rate < 1:
        assert rate * terms.detection * (worth + stake + recent) >= terms.margin * worth


# -------------------------------------------------------------------------------- frequencies

BEACONS = 4_000
STANDARD_DEVIATIONS = 5
RATES = [Fraction(1, 50), Fraction(1, 20), Fraction(5, 28), Fraction(5, 8), Fraction(99, 100)]


def test_draws__over_many_beacons__are_as_frequent_as_the_rate() -> None:
    """A peer-step is drawn q of the time, to five standard deviations."""
    subject = b"the name of a claim"
    beacons = [digest("test", number.to_bytes(4, "big")) for number in range(BEACONS)]
    for rate in RATES:
        drawn = sum(is_drawn(beacon, subject, rate) for beacon in beacons)
        variance = BEACONS * rate * (1 - rate)
        assert abs(drawn - BEACONS * rate) <= STANDARD_DEVIATIONS * (isqrt(int(variance)) + 1)
