"""Does a stage count what it should, keep what it needs, and refuse what does not fit?

Shapes: R rows, T tokens, D width.
"""

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from contracts.terms.errors import InvariantBroken, Malformed, NotFinite, Refused
from contracts.terms.items import ItemNumber
from tests.numerics.loop import new_stage, rows_of, synthetic_corpus
from training.config import ModelConfig, StageSlice, slices_of, whole_model
from training.memory import num_parameters, stage_memory
from training.models.decoder import StageModel
from training.models.initial import initial_weights
from training.recipes import micro, tiny_llama
from training.stages.exact import Moments, apply_adamw
from training.stages.stage import LARGEST, Stage, UnitInputs, rows_tensor
from training.stages.torch_free import update_scalars

CONFIG = micro()
ROOT = Path(__file__).parents[2]
CORPUS = synthetic_corpus()
ROWS = rows_of(CONFIG, CORPUS)
UNIT, OTHER = ItemNumber(0), ItemNumber(1)


def inputs(unit: ItemNumber = UNIT) -> UnitInputs:
    return UnitInputs(rows_RT=rows_tensor(ROWS.load(unit)))


def mean_gradient(stage: Stage) -> Tensor:
    return torch.cat([*stage.mean_buckets(1)])


def counted(stage: Stage, *units: ItemNumber) -> Tensor:
    for unit in units:
        stage.forward(unit, inputs(unit))
        stage.backward(unit)
    return mean_gradient(stage)


def test_initial_weights__cut_or_whole__same_values_under_the_same_names() -> None:
    model = tiny_llama(seed=4).model

    whole = initial_weights(model, whole_model(model))
    parts = [initial_weights(model, part) for part in slices_of(model, (1, 2, 3))]

    joined = {name: value for part in parts for name, value in part.items()}
    assert list(joined) == list(whole)
    assert all(torch.equal(joined[name], whole[name]) for name in whole)


@pytest.mark.parametrize("model", [tiny_llama().model, replace(micro().model, tied_head=True)])
def test_num_parameters__torch_free_count__equals_the_model(model: ModelConfig) -> None:
    whole = whole_model(model)

    built = sum(parameter.numel() for parameter in StageModel(model, whole).parameters())

    assert built == num_parameters(model, whole)


@pytest.mark.nightly  # a process with torch
def test_stage__a_whole_step__never_imports_dynamo() -> None:
    program = (
        "import sys; from tests.numerics import loop; from training.recipes import micro\n"
        "config = micro(); rows = loop.rows_of(config, loop.synthetic_corpus())\n"
        "loop.train(loop.new_stage(config), config, rows, [1])\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )

    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False)

    assert ended.returncode == 0  # dynamo costs a process one CPU second


@pytest.mark.parametrize("part", [*slices_of(tiny_llama().model, (1, 2, 3))])
@pytest.mark.parametrize("num_kv_heads", [2, 4])
def test_stage_memory__activations__cover_what_a_forward_keeps(
    part: StageSlice, num_kv_heads: int
) -> None:
    model = replace(tiny_llama().model, num_kv_heads=num_kv_heads)
    stage, kept = Stage(model, part, CONFIG.optimizer), dict[int, int]()
    own = {tensor.untyped_storage().data_ptr() for tensor in stage.weights().values()}

    def note(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    rows_RT = torch.zeros(4, 129, dtype=torch.int64)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        y = stage.forward(
            UNIT,
            UnitInputs(
                rows_RT=rows_RT if part.has_embedding or part.has_head else None,
                x_RTD=None if part.has_embedding else torch.zeros(4, 128, 256),
            ),
        )

    if not part.has_head:  # the graph keeps its output, though autograd needs no more of it
        note(y)
    measured = sum(size for address, size in kept.items() if address not in own)
    tables = 2 * 128 * 64 * 4  # of rotary positions, which belong to the model
    predicted = stage_memory(model, part, 4).activations_per_unit
    assert measured - tables <= predicted <= 1.1 * measured


def test_backward__twice__refused_and_counted_once() -> None:
    stage = new_stage(CONFIG)
    once = counted(stage, UNIT)

    with pytest.raises(Refused, match="already in the gradient"):
        stage.backward(UNIT)

    assert torch.equal(mean_gradient(stage), once)


def test_backward__dx_is_not_finite__leaves_an_empty_gradient() -> None:
    model = replace(CONFIG.model, num_layers=3)
    stage = Stage(model, StageSlice(1, 2, False, False), CONFIG.optimizer)
    x_RTD = torch.randn(2, 32, 32, generator=torch.Generator().manual_seed(1))
    for unit in (UNIT, OTHER):
        stage.forward(unit, UnitInputs(x_RTD=x_RTD))
    stage.backward(UNIT, x_RTD)

    with pytest.raises(NotFinite):
        stage.backward(OTHER, torch.full_like(x_RTD, LARGEST))

    assert stage.units == ()
    stage.forward(UNIT, UnitInputs(x_RTD=x_RTD))
    stage.backward(UNIT, x_RTD)
    assert bool(torch.isfinite(mean_gradient(stage)).all())


FIRST_OF_TWO = slices_of(CONFIG.model, (1, CONFIG.model.num_layers))[0]


def stage_before_others(*, trains: bool) -> tuple[Stage, Tensor]:
    """A first stage, whose gradient is all that shows what dy was; a dy of ones."""
    stage = Stage(CONFIG.model, FIRST_OF_TWO, CONFIG.optimizer, trains=trains)
    return stage, torch.ones_like(stage.forward(UNIT, inputs()))


@pytest.mark.parametrize("size", [1e37, 2 * LARGEST, math.nan])
@pytest.mark.parametrize("trains", [True, False])
def test_backward__dy_is_huge__is_refused_and_the_gradient_stays(size: float, trains: bool) -> None:
    stage, ones_RTD = stage_before_others(trains=trains)
    stage.backward(UNIT, ones_RTD)
    before = mean_gradient(stage)
    stage.forward(OTHER, inputs(OTHER))

    with pytest.raises(NotFinite, match="output gradient"):
        stage.backward(OTHER, size * ones_RTD)

    assert stage.units == (UNIT,) and torch.equal(mean_gradient(stage), before)


def test_backward__gradient_of_the_first_stage_is_too_large__leaves_an_empty_one() -> None:
    stage, ones_RTD = stage_before_others(trains=True)

    with pytest.raises(NotFinite, match="the gradient"):
        stage.backward(UNIT, LARGEST * ones_RTD)

    assert stage.units == () and not stage.gradient_sum.any()


def test_backward__gradient_is_too_large_for_who_trains__is_far_from_inf_for_who_audits() -> None:
    stage, ones_RTD = stage_before_others(trains=False)

    stage.backward(UNIT, LARGEST * ones_RTD)

    assert stage.units == (UNIT,) and float(stage.gradient_sum.abs().max()) < 1e9 * LARGEST


def test_stage__that_does_not_train__has_no_state() -> None:
    stage = Stage(CONFIG.model, FIRST_OF_TWO, CONFIG.optimizer, trains=False)

    with pytest.raises(InvariantBroken, match="no moments"):
        stage.roots()
    with pytest.raises(InvariantBroken, match="no moments"):
        stage.apply([torch.ones(stage.num_parameters)], 1)


@pytest.mark.parametrize("trains", [True, False])
def test_forward__x_is_huge__is_refused(trains: bool) -> None:
    part = StageSlice(1, 2, False, False)
    stage = Stage(replace(CONFIG.model, num_layers=3), part, CONFIG.optimizer, trains=trains)

    with pytest.raises(NotFinite, match="the input"):
        stage.forward(UNIT, UnitInputs(x_RTD=torch.full((2, 32, 32), 1e30)))


@pytest.mark.parametrize("part", slices_of(tiny_llama().model, (1, 2, 3)))
def test_measure__any_stage__changes_nothing(part: StageSlice) -> None:
    stage = Stage(tiny_llama().model, part, CONFIG.optimizer)
    before = stage.roots()

    stage.measure(7, 1)

    assert stage.roots() == before
    assert stage.units == ()
    with pytest.raises(Refused, match="no unit is in the gradient"):
        mean_gradient(stage)


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (UnitInputs(), "rows come with"),
        (UnitInputs(rows_RT=torch.zeros(2, 32, dtype=torch.int64)), "rows have shape"),
        (UnitInputs(rows_RT=torch.full((2, 33), 256)), "outside the vocabulary"),
        (
            UnitInputs(rows_RT=torch.zeros(2, 33, dtype=torch.int64), x_RTD=torch.zeros(2, 32, 32)),
            "x comes with",
        ),
    ],
)
def test_forward__inputs_that_do_not_fit__refused(bad: UnitInputs, problem: str) -> None:
    with pytest.raises(Refused, match=problem):
        new_stage(CONFIG).forward(UNIT, bad)


@pytest.mark.parametrize("shape", [(2, 32), (2, 31, 32), (2, 32, 31)])
def test_forward__activations_of_another_shape__refused(shape: tuple[int, ...]) -> None:
    last = Stage(CONFIG.model, slices_of(CONFIG.model, (1, 2))[1], CONFIG.optimizer)

    with pytest.raises(Refused, match="x has shape"):
        last.forward(UNIT, UnitInputs(rows_RT=inputs().rows_RT, x_RTD=torch.zeros(shape)))


def test_forward__activations_not_finite__misbehaved() -> None:
    last = Stage(CONFIG.model, slices_of(CONFIG.model, (1, 2))[1], CONFIG.optimizer)
    x_RTD = torch.zeros(2, 32, 32)
    x_RTD[0, 0, 0] = float("nan")

    with pytest.raises(NotFinite):
        last.forward(UNIT, UnitInputs(rows_RT=inputs().rows_RT, x_RTD=x_RTD))


def test_backward__dy_missing_superfluous_or_of_another_shape__refused() -> None:
    first, last = (
        Stage(CONFIG.model, part, CONFIG.optimizer) for part in slices_of(CONFIG.model, (1, 2))
    )
    y_RTD = first.forward(UNIT, inputs())
    last.forward(UNIT, UnitInputs(rows_RT=inputs().rows_RT, x_RTD=y_RTD))

    for stage, dy in ((first, None), (last, y_RTD), (first, y_RTD[:1])):
        with pytest.raises(Refused, match="dy"):
            stage.backward(UNIT, dy)
    with pytest.raises(NotFinite):
        first.backward(UNIT, y_RTD * float("inf"))


def test_stage__units_it_does_not_know__refused() -> None:
    stage = new_stage(CONFIG)

    with pytest.raises(Refused, match="no graph here"):
        stage.backward(UNIT)
    with pytest.raises(Refused, match="no unit is in the gradient"):
        mean_gradient(stage)


def test_apply__average_that_does_not_fit_or_is_not_finite__state_unchanged() -> None:
    stage = new_stage(CONFIG)
    before = stage.roots()

    for average in (torch.zeros(stage.num_parameters + 1), torch.zeros(0)):
        with pytest.raises(Malformed):
            stage.apply([average], 0)
    with pytest.raises(NotFinite):
        stage.apply([torch.full((stage.num_parameters,), float("inf"))], 0)

    assert stage.roots() == before


@pytest.mark.parametrize("norm", [10**8, 5 * 10**9])
def test_apply__average_cut_anywhere__is_the_update_of_the_whole_vector_byte_for_byte(
    norm: int,
) -> None:
    stage, size = new_stage(CONFIG), new_stage(CONFIG).num_parameters
    weights = torch.cat([each.flatten() for each in stage.weights().values()])
    moments = Moments(torch.zeros(size), torch.zeros(size))
    generator = torch.Generator().manual_seed(5)

    for update in range(3):
        average = torch.randn(size, generator=generator)
        stage.apply(iter(average.split([1, 4097, size // 3, size - size // 3 - 4098])), norm)
        scalars = update_scalars(CONFIG.optimizer, update, norm)
        apply_adamw(weights, moments, average, stage.layout.spans(0, size), scalars)

    for own, whole in (
        (stage.weights(), weights),
        (dict(list(stage.moments().items())[: len(stage.weights())]), moments.exp_avg),
        (dict(list(stage.moments().items())[len(stage.weights()) :]), moments.exp_avg_sq),
    ):
        assert torch.equal(torch.cat([each.flatten() for each in own.values()]), whole)


def test_mean_buckets__any_number__are_the_mean_gradient_cut_in_pieces_of_almost_one_length() -> (
    None
):
    stage = new_stage(CONFIG)
    mean = counted(stage, UNIT, OTHER)

    buckets = list(stage.mean_buckets(7))

    assert torch.equal(torch.cat(buckets), mean)
    assert torch.equal(mean, stage.gradient_sum * (1 / stage.num_samples))
    assert max(map(len, buckets)) - min(map(len, buckets)) <= 1


def test_state_root__initial_micro_model__is_this_digest() -> None:
    # Changes when names, order, initial values or the digest change: peers of two versions differ.
    assert new_stage(CONFIG).roots().state.hex()[:16] == "fd8814e2e4be7d23"


def test_state_root__one_bit_or_the_counter_changes__changes() -> None:
    stage = new_stage(CONFIG)
    roots = [stage.roots()]

    stage.moments()["exp_avg_sq.lm_head.weight"][3, 5] = 1e-45
    roots.append(stage.roots())
    stage.weights()["model.norm.weight"][0] = 1.0000001
    roots.append(stage.roots())
    stage.counter += 1
    roots.append(stage.roots())

    assert len({root.state for root in roots}) == 4
    assert roots[0].weights == roots[1].weights != roots[2].weights


def test_load__tensor_of_another_shape__malformed_and_unchanged() -> None:
    stage = new_stage(CONFIG)
    before, tensors = stage.roots(), stage.weights() | stage.moments()
    tensors["model.norm.weight"] = torch.ones(33)

    with pytest.raises(Malformed, match=r"tensor model\.norm\.weight"):
        stage.load(tensors, 1)

    assert stage.roots() == before
