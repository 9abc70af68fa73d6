"""Tensors to try codecs on, as the reference draws them, and how far a codec moves them."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from training.compression.codecs import Codec

NUM = 1_000_000


def samples(seed: int = 0) -> Mapping[str, Tensor]:
    """The distributions of the table in training.md section 10, `NUM` numbers each."""
    draw = np.random.default_rng(seed)
    drawn = {
        "Gauss": draw.standard_normal(NUM),
        "Laplace": draw.laplace(size=NUM),
        "Student-t3": draw.standard_t(3, size=NUM),
    }
    return {name: torch.from_numpy(values.astype(np.float32)) for name, values in drawn.items()}


def relative_error(codec: Codec, tensor: Tensor) -> float:
    """L2 norm of what the codec changes, in parts of the tensor's."""
    decoded = codec.decode(codec.encode(tensor), tensor.shape)
    return float((decoded - tensor).double().norm() / tensor.double().norm())
