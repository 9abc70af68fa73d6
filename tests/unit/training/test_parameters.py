"""What is a stage made of, without torch? (`tests/numerics/test_folder.py` compares the module.)"""

import math
from dataclasses import replace

import pytest

from training.config import slices_of, whole_model
from training.memory import num_parameters
from training.models.parameters import EMBEDDING, HEAD, parameter_shapes
from training.recipes import tiny_llama

MODEL = tiny_llama().model


@pytest.mark.parametrize("tied_head", [False, True])
def test_parameter_shapes__whole_model__are_as_many_elements_as_are_counted(
    tied_head: bool,
) -> None:
    model = replace(MODEL, tied_head=tied_head)
    whole = whole_model(model)

    elements = sum(math.prod(shape) for shape in parameter_shapes(model, whole).values())

    assert elements == num_parameters(model, whole)


def test_parameter_shapes__tied_head_in_two_stages__a_copy_ends_the_first_and_the_last() -> None:
    model = replace(MODEL, tied_head=True)
    stages = slices_of(model, (1, 2, 3))

    first, middle, last = (parameter_shapes(model, stage) for stage in stages)

    assert list(first.items())[-1] == list(last.items())[-1] == (EMBEDDING, (256, 256))
    assert EMBEDDING not in middle and HEAD not in last
    for stage, shapes in zip(stages, (first, middle, last), strict=True):
        assert num_parameters(model, stage) == sum(map(math.prod, shapes.values()))


def test_parameter_shapes__stages__are_the_whole_in_order() -> None:
    parts = [parameter_shapes(MODEL, stage) for stage in slices_of(MODEL, (1, 3))]

    joined = [item for part in parts for item in part.items()]

    assert joined == list(parameter_shapes(MODEL, whole_model(MODEL)).items())
