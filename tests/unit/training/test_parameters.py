"""What is a stage made of, without torch? (`tests/numerics/test_folder.py` compares the module.)"""

import math
from dataclasses import replace

import pytest

from training.config import slices_of, whole_model
from training.memory import num_parameters
from training.models.parameters import parameter_shapes
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


def test_parameter_shapes__stages__are_the_whole_in_order() -> None:
    parts = [parameter_shapes(MODEL, stage) for stage in slices_of(MODEL, (1, 3))]

    joined = [item for part in parts for item in part.items()]

    assert joined == list(parameter_shapes(MODEL, whole_model(MODEL)).items())
