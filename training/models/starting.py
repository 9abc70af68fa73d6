"""The weights that a stage starts from: drawn from the seed, or its slice of the job's weights.

Invariant: a function of the signed ModelSpec and the slice alone; a blob is used only after its
digest was compared, and tensors have the names and shapes of the config. Of the parts that the
job's index lists a stage fetches those alone in which its tensors lie, one after the other.
"""

import torch
from torch import Tensor

from contracts.terms.ids import ZERO_DIGEST
from contracts.terms.messages import ModelSpec
from contracts.terms.parts import MAX_PART_BYTES, decode_parts
from training.config import ModelConfig, StageSlice
from training.data.loading import BlobSource, CheckedBlobs
from training.models.initial import initial_weights
from training.models.parameters import parameter_shapes
from training.models.sources import BytesSource, PartsSource
from training.models.weights import decode_weights


def starting_weights(
    spec: ModelSpec, config: ModelConfig, stage: StageSlice, blobs: BlobSource
) -> dict[str, Tensor]:
    """First values of all parameters of `stage` by name, fp32 on the CPU, in module order.

    Raises:
        WrongBytes, NotFound, ServiceUnreachable: as `CheckedBlobs.fetch`.
        UnknownVersion, Malformed, NotFinite: no index of weights that fit the model, see
            `decode_parts` and `decode_weights`.
    """
    if spec.weights == ZERO_DIGEST:
        return initial_weights(config, stage)
    checked = CheckedBlobs(blobs, cache_bytes=MAX_PART_BYTES)
    index = decode_parts(checked.fetch(spec.weights))
    file = PartsSource(index, lambda part: BytesSource(checked.fetch(part)))
    what = f"the weights {spec.weights.hex()}"
    tensors = decode_weights(file, parameter_shapes(config, stage), what=what)
    return {name: torch.from_numpy(values) for name, values in tensors.items()}
