"""Is the plan the best of all cuts there are, within the memory, for every shape of a model?"""

from collections.abc import Iterator
from itertools import combinations, pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from contracts.terms.errors import Refused
from training.config import ModelConfig, slices_of
from training.flops import item_flops
from training.memory import peer_memory
from training.planner import plan_layers

models = st.builds(
    ModelConfig,
    vocab_size=st.integers(1, 4000),
    width=st.sampled_from([8, 16, 64]),
    num_layers=st.integers(1, 9),
    num_heads=st.just(2),
    num_kv_heads=st.just(2),
    ffn_width=st.integers(1, 300),
    sequence_length=st.integers(1, 64),
)


def all_cuts(num_layers: int, num_stages: int) -> Iterator[tuple[int, ...]]:
    for inner in combinations(range(1, num_layers), num_stages - 1):
        yield (*inner, num_layers)


def busiest(model: ModelConfig, ends: tuple[int, ...]) -> int:
    return max(item_flops(model, stage, 2) for stage in slices_of(model, ends))


def fullest(model: ModelConfig, ends: tuple[int, ...]) -> int:
    return max(peer_memory(model, stage, 2) for stage in slices_of(model, ends))


@given(model=models, num_stages=st.integers(1, 6))
def test_plan_layers__any_model__no_cut_has_a_less_busy_stage(
    model: ModelConfig, num_stages: int
) -> None:
    """Mutation that this catches: deal a layer to the stage that has the fewest without it."""
    assume(num_stages <= model.num_layers)

    ends = plan_layers(model, num_stages, 2)

    assert len(ends) == num_stages
    assert all(start < end for start, end in pairwise((0, *ends)))
    assert busiest(model, ends) == min(
        busiest(model, cut) for cut in all_cuts(model.num_layers, num_stages)
    )


@given(model=models, num_stages=st.integers(1, 5), squeeze=st.floats(0, 1))
def test_plan_layers__bounded_memory__best_of_the_cuts_that_fit_or_refused(
    model: ModelConfig, num_stages: int, squeeze: float
) -> None:
    assume(num_stages <= model.num_layers)
    cuts = list(all_cuts(model.num_layers, num_stages))
    needs = sorted({fullest(model, cut) for cut in cuts})
    bound = round(needs[0] - 1 + squeeze * (needs[-1] - needs[0] + 1))
    fitting = [cut for cut in cuts if fullest(model, cut) <= bound]

    if not fitting:
        with pytest.raises(Refused, match="no cut of"):
            plan_layers(model, num_stages, 2, memory_bytes=bound)
        return
    ends = plan_layers(model, num_stages, 2, memory_bytes=bound)

    assert fullest(model, ends) <= bound
    assert busiest(model, ends) == min(busiest(model, cut) for cut in fitting)
