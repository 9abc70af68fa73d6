"""Which cut does a person get for the models that the recipes name?"""

from dataclasses import replace

import pytest

from contracts.terms.errors import Refused
from training.planner import plan_layers
from training.recipes import micro, tiny_llama


def test_plan_layers__three_layers_in_three__one_each() -> None:
    assert plan_layers(tiny_llama().model, 3, 4) == (1, 2, 3)


def test_plan_layers__alike_stages__the_earlier_one_is_longer() -> None:
    model = replace(tiny_llama().model, num_layers=8)

    assert plan_layers(model, 3, 4) == (3, 6, 8)


def test_plan_layers__large_vocabulary__the_head_has_fewer_layers_beside_it() -> None:
    model = replace(tiny_llama().model, num_layers=8, vocab_size=8192)

    assert plan_layers(model, 2, 4) == (6, 8)


@pytest.mark.parametrize("num_stages", [0, 3, 65])
def test_plan_layers__more_stages_than_layers__refused(num_stages: int) -> None:
    with pytest.raises(Refused, match=f"cannot be cut into {num_stages} stages"):
        plan_layers(micro().model, num_stages, 2)


def test_plan_layers__no_cut_fits__says_what_would_help() -> None:
    with pytest.raises(Refused, match="use more stages"):
        plan_layers(micro().model, 2, 2, memory_bytes=1000)
