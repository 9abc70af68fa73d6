"""The weights that a stage starts from: drawn from the seed, or its slice of the job's blob.

Invariant: a function of the signed ModelSpec and the slice alone; a blob is used only after its
digest was compared, and its tensors have the names and shapes of the config.
"""

import torch
from torch import Tensor

from contracts.terms.ids import ZERO_DIGEST
from contracts.terms.messages import ModelSpec
from training.config import ModelConfig, StageSlice
from training.data.loading import BlobSource, CheckedBlobs
from training.models.initial import initial_weights
from training.models.parameters import parameter_shapes
from training.models.weights import decode_weights


def starting_weights(
    spec: ModelSpec, config: ModelConfig, stage: StageSlice, blobs: BlobSource
) -> dict[str, Tensor]:
    """First values of all parameters of `stage` by name, fp32 on the CPU, in module order.

    Raises:
        WrongBytes, NotFound, ServiceUnreachable: as `CheckedBlobs.fetch`.
        Malformed, NotFinite: the blob does not fit the model, see `decode_weights`.
    """
    if spec.weights == ZERO_DIGEST:
        return initial_weights(config, stage)
    blob = CheckedBlobs(blobs).fetch(spec.weights)
    what = f"the weights {spec.weights.hex()}"
    tensors = decode_weights(blob, parameter_shapes(config, stage), what=what)
    return {name: torch.from_numpy(values) for name, values in tensors.items()}
