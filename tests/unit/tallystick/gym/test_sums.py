"""What does a summing peer bind itself to that lies, and is it never too long?"""

import struct

from contracts.terms.ids import StepNumber
from tallystick.gym.plan import Plan
from tallystick.gym.sums import LeftOut, WrongSum
from training.averaging.slices import Slice
from training.fakes.counting import CountingCompute
from training.worker.ports import HONEST

STEP, COMPUTE = StepNumber(2), CountingCompute(2)
PARTS = [struct.pack("<2f", *pair) for pair in ((4.0, 0.0), (0.0, 4.0), (8.0, 8.0))]
WEIGHTS, TOTALS = [1, 2, 1], [4, 4, 4]


def numbers(piece: Slice) -> tuple[float, ...]:
    return struct.unpack("<2f", piece.data)


def test_honest__mean__is_the_mean() -> None:
    assert numbers(HONEST.mean(COMPUTE, STEP, PARTS, WEIGHTS, TOTALS)) == (3.0, 4.0)


def test_wrong_sum__mean__is_as_long_and_the_opposite() -> None:
    mean = WrongSum(Plan(), 4).mean(COMPUTE, STEP, PARTS, WEIGHTS, TOTALS)

    assert numbers(mean) == (-3.0, -4.0)


def test_left_out__mean__lacks_the_first_part_and_keeps_the_weights_of_the_others() -> None:
    mean = LeftOut(Plan()).mean(COMPUTE, STEP, PARTS, WEIGHTS, TOTALS)

    assert numbers(mean) == (2.0, 4.0)


def test_left_out__only_part__is_there() -> None:
    mean = LeftOut(Plan()).mean(COMPUTE, STEP, PARTS[:1], [1], [1])

    assert numbers(mean) == (4.0, 0.0)


def test_sums__before_their_first_step__are_honest() -> None:
    for liar in (WrongSum(Plan(first=3), 4), LeftOut(Plan(first=3))):
        assert numbers(liar.mean(COMPUTE, STEP, PARTS, WEIGHTS, TOTALS)) == (3.0, 4.0)
