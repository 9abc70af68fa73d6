"""The norm gate for any gradients: what it lets through, and whom it leaves alone.

The oracle is the formula of docs/protocol.md 3.5 in floating point; the code has integers only.
"""

from dataclasses import replace
from math import sqrt
from statistics import median

from hypothesis import given
from hypothesis import strategies as st

from contracts.governance import gates
from contracts.governance.gates import Gated, Gates, PeerStep
from contracts.terms.ids import Address, StageIndex, StepNumber
from tests.support.history import make_digest

STAGE, LATE = StageIndex(0), StepNumber(26)

norms = st.integers(10**3, 10**15)  # 1e-9
peer_steps = st.lists(
    st.tuples(st.integers(0, 4), norms, st.integers(1, 512)), min_size=1, max_size=9
)
past = st.lists(st.lists(st.tuples(st.integers(0, 4), norms), max_size=5), max_size=4)


def made(owner: int, norm: int, samples: int, number: int) -> PeerStep:
    """One peer-step of an owner."""
    return PeerStep(make_digest(number), STAGE, Address(bytes([owner]) * 20), samples, (norm,))


def steps_of(drawn: list[tuple[int, int, int]]) -> list[PeerStep]:
    """Peer-steps of one stage in one step."""
    return [made(*values, number) for number, values in enumerate(drawn)]


def history_of(drawn: list[list[tuple[int, int]]]) -> Gates:
    """What is remembered of these steps."""
    found = Gates()
    for step in drawn:
        own = [made(owner, norm, 1, number) for number, (owner, norm) in enumerate(step)]
        found = gates.remember(found, own)
    return found


def bound(history: list[list[tuple[int, int]]], own: list[PeerStep], each: PeerStep) -> float:
    """The formula, in floating point; infinite where there is nobody to compare with."""
    before: dict[int, list[int]] = {}
    for step in history:
        for owner, norm in step:
            before.setdefault(owner, []).append(norm)
    now: dict[Address, list[int]] = {}
    for other in own:
        now.setdefault(other.owner, []).append(other.norms[0])
    others = [median(found) for owner, found in now.items() if owner != each.owner]
    references = [*([median(map(median, before.values()))] if before else [])]
    references += [median(others)] if others else []
    if not references:
        return float("inf")
    samples = median(other.samples for other in own)
    return 3 * max(references) * max(1.0, sqrt(samples / each.samples))


@given(peer_steps, past)
def test_gate__any_gradients__weights_are_those_of_the_formula(
    drawn: list[tuple[int, int, int]], history: list[list[tuple[int, int]]]
) -> None:
    """Weights are those of the formula, but for what rounding to integers does."""
    own = steps_of(drawn)
    gated: Gated = gates.gate(history_of(history), LATE, own)
    is_open = len({each.owner for each in own}) < 3
    unit = 1 if is_open or not gated.above else gates.FINE
    for each in own:
        limit, weight = bound(history, own, each), gated.weights[each.name] / unit
        # Medians and samples are rounded down, so a bound may be smaller by what that takes away.
        slack = sqrt(1 / (1 + 1 / (2 * each.samples))) - 1e-2
        if each.norms[0] <= limit * slack or is_open:
            assert weight == each.samples or each.norms[0] > limit * slack
        if is_open:
            assert weight == each.samples
        elif each.norms[0] > limit * 1.001:
            assert each.name in gated.above
            scaled, rounded = each.samples * limit / each.norms[0], 1 / gates.FINE
            assert scaled * slack - rounded <= weight <= scaled * (1 + 1e-9)


@given(st.permutations(range(6)), st.lists(norms, min_size=6, max_size=6))
def test_gate__another_order__same_weights(order: list[int], drawn: list[int]) -> None:
    own = [made(number % 4, norm, 8, number) for number, norm in enumerate(drawn)]

    first = gates.gate(Gates(), LATE, own)
    second = gates.gate(Gates(), LATE, [own[place] for place in order])

    assert first == second
    assert gates.remember(Gates(), own) == gates.remember(Gates(), [own[place] for place in order])


@given(st.lists(st.integers(100, 300), min_size=3, max_size=9), st.integers(1, 10**6))
def test_gate__all_within_three_times_the_smallest__nobody_is_above(
    drawn: list[int], unit: int
) -> None:
    own = [made(number, norm * unit, 8, number) for number, norm in enumerate(drawn)]

    gated = gates.gate(Gates(), LATE, own)

    assert gated.above == frozenset()
    assert set(gated.weights.values()) == {8}


@given(st.lists(norms, min_size=3, max_size=6), st.integers(2, 10**6))
def test_gate__own_history_blown_up__own_bound_does_not_grow(drawn: list[int], factor: int) -> None:
    """An owner that was too long in every step moves only its own median, one of several."""
    own = [made(number, norm, 8, number) for number, norm in enumerate(drawn)]
    remembered = Gates()
    for _ in range(5):
        lie = replace(own[0], norms=(max(drawn) * factor,))
        remembered = gates.remember(remembered, [lie, *own[1:]])

    gated = gates.gate(remembered, LATE, [replace(own[0], norms=(3 * max(drawn) + 4,)), *own[1:]])

    assert own[0].name in gated.above
