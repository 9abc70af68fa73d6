"""How much a gradient that is far longer than the others' may weigh."""

from dataclasses import replace
from fractions import Fraction

import pytest

from contracts.governance.gates import FINE, WINDOW, Gates, PeerStep, gate, peer_step, remember
from contracts.terms.ids import Address, StageIndex, StepNumber
from tests.support.history import JobMaker, claims_in, make_digest

LATE = StepNumber(WINDOW + 1)
UNIT = 10**9  # a norm of 1


def made(owner: str, norm: int, *, stage: int = 0) -> PeerStep:
    """A peer-step of an owner; norms in whole numbers."""
    address = Address(owner.encode().ljust(20, b"."))
    return PeerStep(make_digest(owner, stage), StageIndex(stage), address, 10, (norm * UNIT,))


def weights(gates: Gates, *peer_steps: PeerStep, step: StepNumber = LATE) -> list[Fraction]:
    """In samples: of who is not above its bound just those."""
    gated, found = gate(gates, step, peer_steps), list[Fraction]()
    for each in peer_steps:
        mates = (other for other in peer_steps if other.stage == each.stage)
        unit = max(Fraction(gated.weights[other.name], other.samples) for other in mates)
        assert unit in (1, FINE)
        found.append(gated.weights[each.name] / unit)
    return found


def test_gate__in_the_first_25_steps__above_is_named_and_weighs_the_same() -> None:
    steps = made("a", 1), made("b", 1), made("c", 90)

    assert weights(Gates(), *steps, step=StepNumber(WINDOW)) == [10, 10, 10]
    assert len(gate(Gates(), StepNumber(WINDOW), steps).above) == 1


def test_gate__norms_that_grow__are_held_from_the_first_step_and_by_their_steps() -> None:
    steps = [made("a", 1), made("b", 1), replace(made("c", 6), samples=20), made("d", 6)]

    gated = gate(Gates(), StepNumber(1), steps, norms_grow=True)

    assert gated.above == {steps[3].name}
    assert gated.weights[steps[2].name] == 20 * FINE
    assert gated.weights[steps[3].name] == 10 * FINE // 2


def test_gate__others_are_zero__weighs_nothing() -> None:
    assert weights(Gates(), made("a", 0), made("b", 0), made("c", 7)) == [10, 10, 0]


def test_gate__stages__are_compared_each_by_itself() -> None:
    second = [made(owner, 100, stage=1) for owner in "abc"]

    assert weights(Gates(), made("a", 1), made("b", 1), made("c", 1), *second) == [10] * 6


def test_remember__window__drops_the_oldest_step() -> None:
    gates = remember(Gates(), [made("a", 9)])
    for _ in range(WINDOW):
        gates = remember(gates, [made("a", 1)])

    assert len(gates.steps) == WINDOW
    assert all(step == {0: {made("a", 1).owner: ((UNIT,),)}} for step in gates.steps)


def test_peer_step__norm__is_the_root_of_all_parts() -> None:
    maker = JobMaker()
    claim = claims_in(maker.step_items(), "work")[0]
    owner = maker.members[0].wallet.account

    seen = peer_step(claim, owner, 8, 1)

    squared = sum(output.norm_squared for output in claim.outputs)
    assert seen.norms == pytest.approx([(squared / 10**12) ** 0.5 * UNIT], abs=1)
    assert (seen.samples, seen.owner, seen.stage) == (8, owner, claim.group)


def test_peer_step__vectors_that_are_cut_alike__have_a_norm_each() -> None:
    maker = JobMaker()
    claim = claims_in(maker.step_items(), "work")[0]
    squares = [(n + 1) ** 2 * 10**12 for n in range(6)]
    outputs = [claim.outputs[0].model_copy(update={"norm_squared": each}) for each in squares]
    claim = claim.model_copy(update={"outputs": tuple(outputs)})

    norms = peer_step(claim, maker.members[0].wallet.account, 8, 3).norms

    assert norms == pytest.approx([n**0.5 * UNIT for n in (5, 25, 61)], abs=1)


def test_gate__several_vectors__the_one_that_is_farthest_above_its_bound_decides() -> None:
    steps = [replace(made(each, 1), norms=(UNIT, UNIT // 100)) for each in "abc"]
    lie = replace(made("d", 1), norms=(6 * UNIT, UNIT))

    gated = gate(remember(Gates(), steps), LATE, [*steps, lie])

    assert gated.above == {lie.name}
    assert gated.weights[lie.name] == 10 * FINE * 3 // 100  # not half, as of the first one
    assert {gated.weights[each.name] for each in steps} == {10 * FINE}
