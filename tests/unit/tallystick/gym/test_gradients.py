"""What does a peer send that is honest but for its gradient?"""

import struct
from fractions import Fraction

from contracts.terms.ids import StepNumber, UnitId
from tallystick.gym.gradients import flipped, scaled, turned
from tallystick.gym.plan import Plan
from training.averaging.slices import Slice, slice_digest
from training.fakes.counting import CountingCompute
from training.worker.ports import Behaviour

STEP = StepNumber(3)


def computed() -> CountingCompute:
    compute = CountingCompute(2)
    compute.forward(STEP, UnitId(1), None)
    return compute


def sent(behaviour: Behaviour) -> tuple[Slice, ...]:
    parts = behaviour.parts(computed(), STEP)
    assert all(piece.digest == slice_digest(piece.data) for piece in parts)
    return parts


def numbers(parts: tuple[Slice, ...]) -> list[float]:
    data = b"".join(piece.data for piece in parts)
    return list(struct.unpack(f"<{len(data) // 4}f", data))


HONEST = numbers(computed().gradient())


def test_flipped__gradient__one_sign_of_each_small_part() -> None:
    changed = numbers(sent(flipped(Plan(), 4)))

    assert [abs(number) for number in changed] == [abs(number) for number in HONEST]
    assert 1 <= sum(a != b for a, b in zip(changed, HONEST, strict=True)) <= 2


def test_turned__gradient__is_negated() -> None:
    assert numbers(sent(turned(Plan(), 4))) == [-number for number in HONEST]


def test_scaled__gradient__is_multiplied_and_its_norm_with_it() -> None:
    parts = sent(scaled(Plan(), Fraction(1000)))

    assert numbers(parts) == [1000 * number for number in HONEST]
    assert sum(piece.norm_squared for piece in parts) == 10**6 * sum(
        piece.norm_squared for piece in computed().gradient()
    )


def test_forged__outside_its_steps__is_honest() -> None:
    assert numbers(sent(turned(Plan(first=4), 4))) == HONEST
    assert numbers(sent(turned(Plan(last=2), 4))) == HONEST
