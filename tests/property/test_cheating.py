"""No schedule of cheating gains: the table of trials.md, and any other that hypothesis thinks of.

Expected gains are exact and of the shipped rates (`bench.cheating`), in values of one
step. The bound is -(m - 1) v; for steps of different value, v is that of the first cheat.
"""

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.cheating import ONE_A_FLOP, SETTLING, Game, Turn, cheating, expected_gain
from contracts.governance import vesting
from contracts.governance.checking import Forfeit, Standing
from contracts.governance.pay import Lease
from contracts.terms.amounts import BaseUnits, Flops
from contracts.terms.ids import Address, PeerId, StepNumber
from verification.draws.economics import Terms, least_stake, power

V = 60  # base units: parts of it are whole for every margin and phi below
STARTS = (0, 1, 3, 5, 10, 25, 60)
MARGINS = tuple(Fraction(m) for m in ("1", "1.1", "1.25", "1.5", "2"))
PHIS = (Fraction(0), Fraction(1, 3), Fraction(1, 2), Fraction(1))
WINDOWS = (5, 25)
FLOORS = (Fraction(2, 100), Fraction(5, 100))
STAYS = 30  # honest steps after the last cheat: more than any window

SHAPES: dict[str, Sequence[tuple[int, int, int]]] = {  # every, cheats, honest steps after
    "once, goes on": [(1, 1, STAYS)],
    "once, leaves or the job ends": [(1, 1, 0)],
    "always, goes on": [(1, 2, STAYS), (1, 12, STAYS)],
    "always, leaves or the job ends": [(1, cheats, 0) for cheats in (2, 3, 5, 9, 26, 40)],
    "every 2nd step": [(2, 3, STAYS), (2, 3, 0), (2, 13, 0), (2, 30, 0)],
    "every 5th step": [(5, 2, STAYS), (5, 2, 0), (5, 8, 0), (5, 20, 0)],
}


def terms_with(
    margin: Fraction, *, window: int = 5, floor: Fraction = FLOORS[1], detection: str = "1"
) -> Terms:
    """Terms with one outside repeat in five."""
    return Terms(floor, Fraction(1, 10), Fraction(1, 5), margin, Fraction(detection), window)


def games(margin: Fraction) -> Iterator[Game]:
    """Every setting of the table: stakes from the least that q <= 1 needs to 20 v."""
    for window in WINDOWS:
        for floor in FLOORS:
            terms = terms_with(margin, window=window, floor=floor)
            for phi in PHIS:
                least = least_stake(terms, value=BaseUnits(V), power=power(terms, phi))
                assert least is not None
                for stake in sorted({least, max(least, V), max(least, 5 * V), 20 * V}):
                    yield Game(terms, stake, phi, friends=phi)


def in_values(gain: Fraction) -> Fraction:
    return gain / V


# ----------------------------------------------------------------------------------- the table


@pytest.mark.parametrize("margin", MARGINS, ids=str)
def test_cheating__every_schedule_of_the_table__loses_the_margin(
    margin: Fraction, record_property: Callable[[str, object], None]
) -> None:
    worst = {name: Fraction(-(10**9)) for name in SHAPES}
    for game in games(margin):
        for name, shapes in SHAPES.items():
            for start in STARTS:
                for every, cheats, then in shapes:
                    plan = cheating(cheats, every=every, start=start, then=then, worth=V)
                    gain = in_values(expected_gain(game, plan))
                    worst[name] = max(worst[name], gain)

    rows = [f"{float(gain):+8.3f} v  {name}" for name, gain in worst.items()]
    record_property("table", "\n".join([f"worst expected gain at m = {float(margin)}", *rows]))
    assert max(worst.values()) == -(margin - 1)  # never above, and tight


# ------------------------------------------------------------------------------- any schedule

turns = st.lists(st.tuples(st.integers(0, 400), st.booleans()), min_size=1, max_size=16)


@given(
    wanted=turns,
    stake=st.integers(0, 300),
    margin=st.sampled_from(MARGINS),
    phi=st.sampled_from([*PHIS, None]),
    fewer_friends=st.sampled_from([Fraction(1), Fraction(1, 2), Fraction(0)]),
    window=st.sampled_from([0, 1, *WINDOWS]),
    floor=st.sampled_from(FLOORS),
    detection=st.sampled_from(["1", "0.99", "2/3"]),
    settling=st.sampled_from([0, 1, SETTLING]),
)
def test_cheating__any_schedule_that_the_router_allows__loses_the_margin(
    wanted: list[tuple[int, bool]],
    stake: int,
    margin: Fraction,
    phi: Fraction | None,
    fewer_friends: Fraction,
    window: int,
    floor: Fraction,
    detection: str,
    settling: int,
) -> None:
    """Whatever the router can be made to hand out, and whenever it is falsified."""
    terms = terms_with(margin, window=window, floor=floor, detection=detection)
    friends = fewer_friends * (phi or 0)
    game = Game(terms, stake, phi, friends, settling)
    plan: list[Turn] = []
    for worth, cheats in wanted:
        most = game.most(tuple(turn.value for turn in plan))
        plan.append(Turn(min(worth, most), cheats))
    first = next((turn.value for turn in plan if turn.cheats and turn.value), 0)

    assert expected_gain(game, plan) <= -(margin - 1) * first


# ------------------------------------------------------------------- the same pay as the seals

PEER, ACCOUNT = PeerId(b"p" * 32), Address(b"a" * 20)
LEASES = {PEER: Lease(ACCOUNT, ONE_A_FLOP)}


def vested_in_ledger(game: Game, values: Sequence[int], found: int | None) -> int:
    """What the shipped fold of pay has vested at the end; `found`: the step that convicts it.

    A draw is open until `game.settling` seals later; a conviction takes what waits in that seal,
    and after it the peer works no more.
    """
    state = vesting.PayState(window=game.terms.window)
    convicted = None if found is None else found + game.settling
    for step in range(1, len(values) + game.settling + 2):
        worth = values[step - 1] if step <= len(values) else 0
        works = convicted is None or step <= convicted
        last = step == len(values) + game.settling + 1
        standing = Standing(
            settled_to=StepNumber(max(0, step - game.settling)),
            forfeits=(Forfeit(PEER),) if step == convicted else (),
        )
        work = {PEER: Flops(worth)} if works else {}
        state = vesting.advance(state, StepNumber(step), work, standing, last=last)
    pay: dict[Address, int] = {
        leaf.account: leaf.vested for leaf in vesting.pay_after(state, LEASES)
    }
    return pay.get(ACCOUNT, 0)


@given(
    values=st.lists(st.integers(0, 9), min_size=1, max_size=14),
    at=st.integers(1, 14),
    window=st.integers(0, 5),
    settling=st.integers(0, 4),
)
def test_schedules__any_outcome__pays_what_the_ledger_pays(
    values: list[int], at: int, window: int, settling: int
) -> None:
    """Pay that `schedules` counts for each outcome is what the fold of pay lets vest."""
    step = min(at, len(values))
    # Everything is drawn and found, so that the gain is that of a single outcome.
    certain = terms_with(Fraction(5, 4), window=window, floor=Fraction(1))
    game = Game(certain, 0, Fraction(0), Fraction(0), settling)
    plan = [Turn(each, cheats=n == step) for n, each in enumerate(values, start=1)]
    cost = sum(turn.value for turn in plan[: step + settling] if not turn.cheats)

    gain = expected_gain(game, plan)
    assert gain + cost == vested_in_ledger(game, values, step)
    assert sum(values) == vested_in_ledger(game, values, None)
