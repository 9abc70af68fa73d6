"""What the weights are before the first step: a function of the model's config, byte for byte.

Invariant: a parameter's first values depend on (init_seed, its name, its shape) alone, so they do
not depend on how the model is cut, and they are equal bytes on every device: whole numbers from
a Mersenne twister on the CPU times one fp32 constant (a normal distribution would need a logarithm
and a cosine, which vector units round differently).

An adapter's A is uniform within 1 / sqrt(inputs), as in `peft` (He et al. 2015 with a = sqrt(5));
its B is 0, so that the model begins as it was.
Matrices are uniform with mean 0 and standard deviation 1 / sqrt(inputs), embedding rows
`EMBEDDING_STD`; matrices that write into the residual stream are scaled down by
1 / sqrt(2 x layers) (Radford et al. 2019, GPT-2); norms are 1, biases 0.
"""

import math

import torch
from torch import Tensor

from contracts.terms.digest import digest
from training.config import ModelConfig, StageSlice
from training.models.parameters import parameter_shapes

EMBEDDING_STD = 0.02
_HALF_RANGE = 2**23  # fp32 holds every whole number up to 2**24 exactly
_RESIDUAL_WRITERS = ("o_proj.weight", "down_proj.weight")


def initial_parameter(config: ModelConfig, name: str, shape: tuple[int, ...]) -> Tensor:
    """First values of the parameter `name`, fp32 on the CPU."""
    if len(shape) == 1:
        return torch.zeros(shape) if name.endswith(".bias") else torch.ones(shape)
    if name.endswith(".lora_B.weight"):
        return torch.zeros(shape)
    scale = math.sqrt(3.0) * _standard_deviation(config, name, shape) / _HALF_RANGE
    return _uniform_integers(config.init_seed, name, shape) * scale


def initial_weights(config: ModelConfig, stage: StageSlice) -> dict[str, Tensor]:
    """First values of all that `stage` trains by name, in the order of the module."""
    shapes = parameter_shapes(config, stage)
    return {name: initial_parameter(config, name, shape) for name, shape in shapes.items()}


def _standard_deviation(config: ModelConfig, name: str, shape: tuple[int, ...]) -> float:
    if name == "model.embed_tokens.weight":
        return EMBEDDING_STD
    if name.endswith(".lora_A.weight"):
        return 1 / math.sqrt(3 * shape[1])
    scale = 1 / math.sqrt(2 * config.num_layers) if name.endswith(_RESIDUAL_WRITERS) else 1.0
    return scale / math.sqrt(shape[1])


def _uniform_integers(seed: int, name: str, shape: tuple[int, ...]) -> Tensor:
    # Whole numbers in [-2**23, 2**23), as fp32.
    key = digest("initial weights", f"{seed} {name}".encode())
    generator = torch.Generator(device="cpu").manual_seed(int.from_bytes(key[:4], "big"))
    return torch.empty(shape).random_(-_HALF_RANGE, _HALF_RANGE, generator=generator)
