"""A trained adapter as a folder of `peft`, or added to the weights that it was trained beside.

Names and layouts are those of `peft`, behind its prefix, so tensors are copied. The base model is
no part of the folder, which names it.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from contracts.terms.errors import InvariantBroken, Malformed
from contracts.terms.messages import AdapterSpec
from training.config import ModelConfig, whole_model
from training.models.folder import CONFIG, TOKENIZER, Beside, write_whole
from training.models.parameters import parameter_shapes
from training.models.weights import Weights

ADAPTER = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
PREFIX = "base_model.model."
_OF_THE_BASE = {CONFIG, "generation_config.json", "README", "README.md"}
"""Files beside the weights that say of the base what is not so of an adapter."""


def adapter_of(config: ModelConfig) -> AdapterSpec:
    """The adapter of a model that has one."""
    if config.adapter is None:
        raise InvariantBroken("this model has no adapter")
    return config.adapter


def write_adapter(
    folder: Path,
    config: ModelConfig,
    weights: Weights,
    base: str,
    tokenizer: bytes | None = None,
    beside: Beside | None = None,
) -> None:
    """Write a folder that `peft.PeftModel.from_pretrained` opens; it appears when it is whole.

    Args:
        folder: Where nothing is yet.
        config: What was trained.
        weights: Of the adapters of all layers.
        base: What the weights that they were trained beside are called.
        tokenizer: The file that its data was made with.
        beside: What those weights had beside them.

    Raises:
        Conflict: there is something at `folder` already. Malformed: tensors are missing, or of
        another shape. NotFinite: of weights that are on disk. Refused: it cannot be written.
    """
    shapes = parameter_shapes(config, whole_model(config))
    if set(weights) != set(shapes):
        raise Malformed("these weights are not those of the whole adapter")
    beside = beside or {}
    files = {name: data for name, data in beside.items() if name not in _OF_THE_BASE}
    if tokenizer is not None:
        files[TOKENIZER] = tokenizer
    files[ADAPTER_CONFIG] = _encoded(adapter_of(config), base)
    named = {PREFIX + name: weights[name] for name in shapes}
    write_whole(folder, named, {PREFIX + name: shapes[name] for name in shapes}, files, to=ADAPTER)


def _encoded(adapter: AdapterSpec, base: str) -> bytes:
    fields = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "target_modules": list(adapter.targets),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    return (json.dumps(fields, indent=2) + "\n").encode()


class Merged(Weights):
    """Weights with an adapter added, W + (alpha / rank) B A, each made when it is asked for."""

    def __init__(self, config: ModelConfig, base: Weights, adapters: Weights) -> None:
        adapter = adapter_of(config)
        self._scale = np.float32(adapter.alpha / adapter.rank)
        self._base, self._adapters = base, adapters

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        layer = name.removesuffix(".weight")
        if (first := f"{layer}.lora_A.weight") not in self._adapters:
            return self._base[name]
        added = self._adapters[f"{layer}.lora_B.weight"] @ self._adapters[first]
        return self._base[name] + self._scale * added

    def __iter__(self) -> Iterator[str]:
        return iter(self._base)

    def __len__(self) -> int:
        return len(self._base)
