"""Is an update the same bytes however it is computed, and the textbook's AdamW?"""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from contracts.terms.errors import NotFinite, Refused
from contracts.terms.messages import NORM_SCALE, NORM_SQUARED_SCALE
from training.averaging.norms import norm_squared
from training.config import OptimizerConfig
from training.stages.exact import Moments, Span, apply_adamw, to_wire, weighted_mean
from training.stages.torch_free import UpdateScalars, update_scalars

NUM = 100_003
SPANS = (Span(0, 70_001, decays=True), Span(70_001, NUM, decays=False))
CONFIG = OptimizerConfig(learning_rate=0.003, total_steps=40, warmup_steps=4, clip_norm=1.0)
NUM_UPDATES = 12
Floats = NDArray[np.float32]


def vector(seed: int, num: int = NUM) -> Tensor:
    """Values over many magnitudes, subnormal squares among them."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(num, generator=generator)
    return values * 10 ** (6 * torch.rand(num, generator=generator) - 5)


def gradients() -> list[tuple[Tensor, UpdateScalars]]:
    found = []
    for update in range(NUM_UPDATES):
        norm = (update % 3) * NORM_SCALE  # with and without clipping
        found.append((vector(100 + update), update_scalars(CONFIG, update, norm)))
    return found


def by_torch(block_elements: int) -> tuple[bytes, bytes, bytes]:
    weights, moments = vector(1), Moments(torch.zeros(NUM), torch.zeros(NUM))
    for average, scalars in gradients():
        apply_adamw(weights, moments, average, SPANS, scalars, block_elements=block_elements)
    return (
        bytes(to_wire(weights)),
        bytes(to_wire(moments.exp_avg)),
        bytes(to_wire(moments.exp_avg_sq)),
    )


def numpy_update(w: Floats, m: Floats, v: Floats, g: Floats, s: UpdateScalars) -> None:
    f = np.float32
    g = g * f(s.clip)
    w[: SPANS[0].end] *= f(s.decay)
    m *= f(s.beta1)
    m += g * f(s.one_minus_beta1)
    v *= f(s.beta2)
    v += g * g * f(s.one_minus_beta2)
    w -= m / (np.sqrt(v) * f(s.inverse_root_correction2) + f(s.epsilon)) * f(s.step_size)


def by_numpy() -> tuple[bytes, bytes, bytes]:
    w = vector(1).numpy()
    m, v = np.zeros(NUM, np.float32), np.zeros(NUM, np.float32)
    for average, scalars in gradients():
        numpy_update(w, m, v, average.numpy(), scalars)
    return w.tobytes(), m.tobytes(), v.tobytes()


@pytest.mark.parametrize(("num_threads", "block_elements"), [(1, 977), (2, 2**16), (2, 2**24)])
def test_apply_adamw__any_threads_and_blocks__equals_numpy_byte_for_byte(
    num_threads: int, block_elements: int
) -> None:
    torch.set_num_threads(num_threads)

    assert by_torch(block_elements) == by_numpy()


def test_apply_adamw__twelve_updates__close_to_the_optimizer_of_torch() -> None:
    weights, moments = torch.randn(NUM, generator=torch.Generator().manual_seed(3)), None
    moments = Moments(torch.zeros(NUM), torch.zeros(NUM))
    reference = weights.clone().requires_grad_()
    theirs = torch.optim.AdamW(
        [reference], betas=(CONFIG.beta1, CONFIG.beta2), eps=CONFIG.epsilon, weight_decay=0.1
    )

    for average, scalars in gradients():
        apply_adamw(weights, moments, average, [Span(0, NUM, decays=True)], scalars)
        reference.grad = average * scalars.clip
        theirs.param_groups[0]["lr"] = (1 - scalars.decay) / CONFIG.weight_decay
        theirs.step()

    assert torch.allclose(weights, reference.detach(), rtol=1e-5, atol=1e-6)


def test_apply_adamw__gradient_zero_in_the_first_update__moves_nothing_but_decay() -> None:
    weights, moments = torch.ones(NUM), Moments(torch.zeros(NUM), torch.zeros(NUM))
    scalars = update_scalars(CONFIG, 0, 0)

    apply_adamw(weights, moments, torch.zeros(NUM), SPANS, scalars)

    assert set(weights[:70_001].tolist()) == {scalars.decay}
    assert set(weights[70_001:].tolist()) == {1.0}


@pytest.mark.parametrize("num", [0, 1, 2, 3, 1000, NUM])
def test_norm_squared__any_length__equals_the_exact_sum(num: int) -> None:
    values = vector(7, num)

    exact = sum(int(x * 2**100) ** 2 for x in values.double().tolist()) / 2**200

    assert norm_squared(to_wire(values)) == pytest.approx(
        exact * NORM_SQUARED_SCALE, rel=1e-12, abs=1
    )


def test_norm_squared__not_finite__misbehaved() -> None:
    for bad in (float("inf"), float("nan")):
        with pytest.raises(NotFinite):
            norm_squared(to_wire(torch.tensor([1.0, bad])))


def test_weighted_mean__totals_of_two_stages__is_the_sum_of_their_means() -> None:
    parts, weights, totals = [vector(seed) for seed in range(4)], [8, 4, 5, 2], [12, 12, 7, 7]
    expected = np.zeros(NUM, np.float32)
    for part, weight, total in zip(parts, weights, totals, strict=True):
        expected += part.numpy() * np.float32(weight / total)

    both = weighted_mean(parts, weights, totals)

    assert both.numpy().tobytes() == expected.tobytes()
    means = weighted_mean(parts[:2], weights[:2]) + weighted_mean(parts[2:], weights[2:])
    assert float((both - means).norm() / means.norm()) <= 1e-6


def test_weighted_mean__a_part_that_weighs_nothing__changes_nothing() -> None:
    part, junk = vector(9), torch.full((NUM,), 3e38)

    assert bytes(to_wire(weighted_mean([junk, part], [0, 28]))) == bytes(to_wire(part))


@pytest.mark.parametrize(("num_parts", "weights"), [(0, []), (2, [1]), (1, [0]), (2, [3, -1])])
def test_weighted_mean__weights_that_do_not_fit__refused(
    num_parts: int, weights: list[int]
) -> None:
    with pytest.raises(Refused):
        weighted_mean([torch.ones(3)] * num_parts, weights)
    with pytest.raises(Refused):
        weighted_mean([torch.ones(3)] * 2, [1, 1], [2])


def test_to_wire__read_as_fp32__is_the_tensor() -> None:
    values = vector(10, 77)

    assert torch.equal(torch.frombuffer(to_wire(values), dtype=torch.float32), values)
