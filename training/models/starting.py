"""The weights that a stage starts from: drawn from the seed, or its slice of the job's weights.

Adapters are always drawn; the job's weights are then what they are trained beside.

Invariant: a function of the signed ModelSpec and the slice alone; a blob is used only after its
digest was compared, and tensors have the names and shapes of the config. Of the parts that the
job's index lists a stage fetches those alone in which its tensors lie, one after the other.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from contracts.terms.ids import ZERO_DIGEST
from contracts.terms.messages import ModelSpec
from contracts.terms.parts import MAX_PART_BYTES, Parts
from training.config import ModelConfig, StageSlice
from training.data.loading import BlobSource, CheckedBlobs
from training.models.initial import initial_weights
from training.models.parameters import model_shapes
from training.models.sources import BytesSource, PartsSource
from training.models.weights import decode_weights


def starting_weights(
    spec: ModelSpec, config: ModelConfig, stage: StageSlice, blobs: BlobSource
) -> dict[str, Tensor]:
    """First values of all that `stage` trains by name, fp32 on the CPU, in module order.

    Raises: as `named_weights`, if these are the job's.
    """
    if spec.weights == ZERO_DIGEST or spec.adapter is not None:
        return initial_weights(config, stage)
    return named_weights(spec, config, stage, blobs)


_FROZEN: dict[tuple[ModelSpec, StageSlice, str], dict[str, Tensor]] = {}
"""Of the newest slice that was asked for: who trains a stage, and replays work of it with another
strategy, has these weights once."""


def frozen_weights(
    spec: ModelSpec, config: ModelConfig, stage: StageSlice, blobs: BlobSource, device: str
) -> Mapping[str, Tensor]:
    """What an adapter of `stage` is trained beside, by name, on the device; else nothing.

    Raises: as `named_weights`.
    """
    if spec.adapter is None:
        return {}
    key = (spec, stage, device)
    found = _FROZEN.get(key)
    if found is None:
        _FROZEN.clear()  # before the next ones take memory
        loaded = named_weights(spec, config, stage, blobs)
        found = _FROZEN[key] = {name: tensor.to(device) for name, tensor in loaded.items()}
    return found


def named_weights(
    spec: ModelSpec, config: ModelConfig, stage: StageSlice, blobs: BlobSource
) -> dict[str, Tensor]:
    """The slice of the job's weights by name, fp32 on the CPU, in module order.

    Raises:
        WrongBytes, NotFound, ServiceUnreachable: as `CheckedBlobs.fetch`.
        UnknownVersion, Malformed, NotFinite: no index of weights that fit the model, see
            `Parts.decoded` and `decode_weights`.
    """
    checked = CheckedBlobs(blobs, cache_bytes=MAX_PART_BYTES)
    index = Parts.decoded(checked.fetch(spec.weights))
    file = PartsSource(index, lambda part: BytesSource(checked.fetch(part)))
    what = f"the weights {spec.weights.hex()}"
    tensors = decode_weights(file, model_shapes(config, stage), what=what)
    return {name: torch.from_numpy(values) for name, values in tensors.items()}
