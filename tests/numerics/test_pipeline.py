"""Is a model that is cut into stages, whose tensors travel as bytes, the model in one piece?

Losses and gradients of two and three stages against one, byte for byte where the arithmetic is the
same; a replay from bytes repeats every byte under every codec; an interrupted run is one that was
not.
"""

from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from contracts.terms.chunks import Chunking
from contracts.terms.errors import Malformed, NotFound, Refused, WrongBytes
from contracts.terms.ids import ZERO_DIGEST, StageIndex, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.messages import CodecName
from tests.numerics.loop import sealed_norm
from tests.numerics.pipeline import FIRST, NUM_CHUNKS, UNITS, spec_of, stages_of, trip
from training.models.parameters import EMBEDDING
from training.stages.torch_free import num_groups
from training.worker.stage_compute import StageCompute

CUTS = [(1, 3), (2, 3), (1, 2, 3)]
CODECS: tuple[CodecName, ...] = ("none", "float16", "bfloat16", "blockwise8")


def whole_gradient(stages: Iterable[StageCompute]) -> Tensor:
    pieces = [piece.data for stage in stages for piece in stage.gradient()]
    return torch.cat([torch.frombuffer(bytearray(data), dtype=torch.float32) for data in pieces])


def step_of(stages: list[StageCompute], step: StepNumber, *, is_tied: bool = False) -> None:
    """All units of a step, then the update of every stage by the norm of all."""
    for unit in UNITS:
        trip(stages, step, unit)
    pieces = [stage.gradient() for stage in stages]
    chunking = Chunking(len(stages), NUM_CHUNKS, is_tied)
    means = {}
    for chunk in chunking.all:
        parts = [pieces[stage][chunk[1]].data for stage in chunking.stages_of(chunk)]
        ones = [1] * len(parts)
        means[chunk] = stages[chunk[0]].mean(parts, ones, ones)
    norm = sealed_norm(mean.norm_squared for mean in means.values())
    for number, stage in enumerate(stages):
        applied = chunking.of_stage(StageIndex(number))
        stage.apply([means[chunk].data for chunk in applied], norm)


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_pipeline__cut_into_stages__losses_and_gradients_of_the_whole(cut: tuple[int, ...]) -> None:
    (whole,), stages = stages_of(spec_of(3)), stages_of(spec_of(*cut))

    for unit in UNITS:
        loss = whole.forward(FIRST, unit, None).loss
        assert trip(stages, FIRST, unit).loss == loss  # in 1e-6 nats

    split, expected = whole_gradient(stages), whole_gradient([whole])
    assert split.numel() == expected.numel()
    assert float((split - expected).norm() / expected.norm()) <= 1e-6


@pytest.mark.parametrize("is_tied", [False, True], ids=["two heads", "tied head"])
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_pipeline__three_steps__weights_of_the_whole_and_tied_copies_equal_after_each(
    cut: tuple[int, ...], is_tied: bool
) -> None:
    (whole,) = stages_of(spec_of(3, tied_head=is_tied))
    stages = stages_of(spec_of(*cut, tied_head=is_tied))

    for step in range(1, 4):
        step_of([whole], StepNumber(step), is_tied=is_tied)
        step_of(stages, StepNumber(step), is_tied=is_tied)
        if is_tied:
            first, last = (stages[end].weights()[EMBEDDING] for end in (0, -1))
            assert torch.equal(first, last)

    split = {name: value for stage in stages for name, value in stage.weights().items()}
    assert split.keys() == whole.weights().keys()
    for name, value in whole.weights().items():
        assert torch.allclose(split[name], value, rtol=1e-5, atol=2e-6), name


def test_pipeline__tied_head_in_one_stage__state_is_cut_and_named_as_it_always_was() -> None:
    (whole,) = stages_of(spec_of(3, tied_head=True))

    assert next(iter(whole.weights())) == EMBEDDING
    # Changes when names, order, initial values or the digest of a tied model change.
    assert whole.roots().state.hex()[:16] == "14acca2d9aab569f"


@pytest.mark.parametrize("codec", CODECS[1:])
def test_pipeline__codec_between_the_stages__near_the_exact_loss(codec: CodecName) -> None:
    exact, coded = stages_of(spec_of(1, 2, 3)), stages_of(spec_of(1, 2, 3, codec=codec))

    for unit in UNITS:
        differs = abs(trip(coded, FIRST, unit).loss - trip(exact, FIRST, unit).loss)
        assert differs <= 20_000  # 0.02 nats of about 5.6

    wanted, found = whole_gradient(exact), whole_gradient(coded)
    assert 0 < float((found - wanted).norm() / wanted.norm()) <= 0.1


def test_pipeline__unit_subtracted__gradient_of_the_others() -> None:
    spec = spec_of(1, 2, 3)
    stages, others = stages_of(spec), stages_of(spec)
    made = [trip(stages, FIRST, unit) for unit in UNITS][1]
    for unit in (UNITS[0], *UNITS[2:]):
        trip(others, FIRST, unit)

    for number, stage in enumerate(stages):
        stage.subtract(FIRST, UNITS[1], made.x[number], made.dy[number])
        assert stage.units == (UNITS[0], *UNITS[2:])

    left, wanted = whole_gradient(stages), whole_gradient(others)
    assert float((left - wanted).norm() / wanted.norm()) <= 1e-5


@pytest.mark.parametrize("bad", [b"", bytes(4), bytes(2 * 32 * 32 * 4 - 4)])
def test_pipeline__x_of_another_size__malformed_and_nothing_counted(bad: bytes) -> None:
    last = stages_of(spec_of(1, 3))[1]

    with pytest.raises(Malformed):
        last.forward(FIRST, UNITS[0], bad)

    assert last.units == ()


def test_pipeline__counted_unit_is_asked_for_again__refused() -> None:
    stages = stages_of(spec_of(1, 3))
    made = trip(stages, FIRST, UNITS[0])

    for stage, x in zip(stages, made.x, strict=True):
        with pytest.raises(Refused, match="counted already"):
            stage.forward(FIRST, UNITS[0], x)


def test_pipeline__validation_groups__mean_is_that_of_the_whole_model() -> None:
    (whole,), stages = stages_of(spec_of(3)), stages_of(spec_of(1, 2, 3))
    groups = [ItemNumber(group) for group in range(0, num_groups(2), 16)]

    for group in groups:
        x: bytes | None = None
        for stage in stages[:-1]:
            y = stage.evaluate(group, x).y
            assert y is not None
            x = y.data
        assert stages[-1].evaluate(group, x).loss == whole.evaluate(group, None).loss

    assert whole.units == () and all(stage.units == () for stage in stages)
    with pytest.raises(Refused, match="no group"):
        whole.evaluate(ItemNumber(num_groups(2)), None)


def test_adopt__checkpoint_of_another_member__its_state_under_our_folder(tmp_path: Path) -> None:
    spec = spec_of(1, 3)
    (_, there), (first, here) = stages_of(spec), stages_of(spec)
    there.measure(1)
    there.save(tmp_path / "there", StepNumber(2))
    file, root = there.checkpoint(tmp_path / "there", StepNumber(2)), there.roots().state

    for compute, wanted, error in ((here, ZERO_DIGEST, WrongBytes), (first, root, Malformed)):
        copy = tmp_path / "copy"
        copy.write_bytes(file.read_bytes())
        with pytest.raises(error):
            compute.adopt(tmp_path / "here", StepNumber(2), copy, wanted)
    here.adopt(tmp_path / "here", StepNumber(2), copy, root)

    assert here.checkpoint(tmp_path / "here", StepNumber(2)).read_bytes() == file.read_bytes()
    with pytest.raises(NotFound):
        here.checkpoint(tmp_path / "here", StepNumber(4))


def test_save__two_members_with_one_state__equal_files(tmp_path: Path) -> None:
    spec = spec_of(1, 3)
    files = []
    for name in ("ann", "bob"):
        compute = stages_of(spec)[1]
        compute.save(tmp_path / name, StepNumber(2))
        files.append(compute.checkpoint(tmp_path / name, StepNumber(2)).read_bytes())

    assert files[0] == files[1]
