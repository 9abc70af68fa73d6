"""Small models of every family, as `transformers` makes them and as we do; how far are they apart?

The weights are drawn, so that no bias is 0 and no norm is 1. What `transformers` computes is with
its plainest attention: scores, mask, softmax.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM

from contracts.terms.items import ItemNumber
from training.config import ModelConfig, whole_model
from training.models.parameters import parameter_shapes
from training.models.weights import Weights
from training.recipes import micro
from training.stages.stage import Stage, UnitInputs

BASE = replace(micro().model, num_layers=4, norm_eps=1e-6)
SCALING = {
    "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
SCALED = {"rope_factor": 8.0, "rope_context": 16}
IGNORED = {
    "_name_or_path", "architectures", "bos_token_id", "eos_token_id", "pad_token_id", "dtype",
    "transformers_version", "initializer_range", "pretraining_tp", "max_window_layers",
    "no_rope_layer_interval",
}  # fmt: skip
"""Fields of a config that say nothing about what is computed, beside those that do."""


@dataclass(frozen=True)
class Sample:
    """A model: `theirs` and `ours` are what differs from the small Llama."""

    model_type: str
    theirs: Mapping[str, Any]
    ours: Mapping[str, Any]

    @property
    def config(self) -> ModelConfig:
        """What we call it."""
        return replace(BASE, **self.ours)

    def transformers_config(self) -> Any:
        """What `transformers` calls it."""
        config = self.config
        sizes = {
            "vocab_size": config.vocab_size, "hidden_size": config.width,
            "intermediate_size": config.ffn_width, "num_hidden_layers": config.num_layers,
            "num_attention_heads": config.num_heads, "num_key_value_heads": config.num_kv_heads,
            "max_position_embeddings": config.sequence_length, "rms_norm_eps": config.norm_eps,
            "tie_word_embeddings": config.tied_head, "pad_token_id": None,
            "bos_token_id": None, "eos_token_id": None, "rope_theta": float(config.rope_theta),
        }  # fmt: skip
        return AutoConfig.for_model(self.model_type, **(sizes | deepcopy(dict(self.theirs))))


_SCALED = {"rope_scaling": {"rope_type": "llama3", **SCALING}}
_WINDOW = {"use_sliding_window": True, "sliding_window": 8}
_BY_TURNS = {"layer_types": ["sliding_attention", "full_attention"] * 2}
SAMPLES: Mapping[str, Sample] = {
    "Llama": Sample("llama", {}, {}),
    "Llama 3": Sample("llama", _SCALED, {**SCALED, "rope_theta": 500_000}),
    "SmolLM2": Sample("llama", {}, {"tied_head": True, "num_heads": 2, "num_kv_heads": 1}),
    "Qwen2": Sample("qwen2", {}, {"qkv_bias": True, "tied_head": True, "rope_theta": 1_000_000}),
    "Qwen2, windows": Sample(
        "qwen2", {**_WINDOW, "max_window_layers": 2},
        {"qkv_bias": True, "window": 8, "full_layers": (0, 1)},
    ),
    "Qwen3": Sample("qwen3", {"head_dim": 16}, {"qk_norm": True, "head_dim": 16}),
    "Qwen3, windows": Sample(
        "qwen3", {"head_dim": 16, **_WINDOW, **_BY_TURNS},
        {"qk_norm": True, "head_dim": 16, "window": 8, "full_layers": (1, 3)},
    ),
    "Mistral": Sample(  # its heads do not divide its width
        "mistral", {"sliding_window": None, "head_dim": 16}, {"num_heads": 6, "head_dim": 16}
    ),
    "Mistral, window": Sample(  # three blocks of queries
        "mistral", {"sliding_window": 600}, {"window": 600, "sequence_length": 1100}
    ),
    "SmolLM3": Sample("smollm3", {}, {"unrotated_layers": (3,), "tied_head": True}),
    "SmolLM3, windows": Sample(
        "smollm3", {**_WINDOW, **_SCALED, "no_rope_layers": [1, 0, 1, 0]},
        {"unrotated_layers": (1, 3), "window": 8, "full_layers": (0, 2), **SCALED},
    ),
}  # fmt: skip
PLAIN: Mapping[str, Any] = {
    "rope_factor": 1.0,
    "window": 0,
    "full_layers": (),
    "unrotated_layers": (),
}
"""What is of a family and changes no shape, as plain Llama has it."""


def drawn(config: ModelConfig) -> dict[str, NDArray[np.float32]]:
    """Weights of every parameter, norms and biases included, that are no initial ones."""
    generator = np.random.default_rng(5)
    shapes = parameter_shapes(config, whole_model(config))
    is_norm = {name: name.endswith("norm.weight") for name in shapes}
    return {
        name: (generator.standard_normal(shape) * 0.3 + is_norm[name]).astype(np.float32)
        for name, shape in shapes.items()
    }


def filled(sample: Sample) -> Any:
    """A model of `transformers` with the drawn weights."""
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(sample.transformers_config())
    weights = {name: torch.from_numpy(value) for name, value in drawn(sample.config).items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    return model


def rows_for(config: ModelConfig, num_rows: int = 2) -> Tensor:
    """Rows of random tokens, (R, T + 1) int64."""
    generator = torch.Generator().manual_seed(3)
    shape = (num_rows, config.sequence_length + 1)
    return torch.randint(config.vocab_size, shape, generator=generator)


@dataclass(frozen=True)
class Apart:
    """How far two models lie apart: norm of the difference over the norm, the largest of all."""

    logits: float
    gradient: float
    where: str  # the parameter with that gradient

    @property
    def largest(self) -> float:
        """Of both."""
        return max(self.logits, self.gradient)


def apart(config: ModelConfig, weights: Weights, theirs: Any) -> Apart:
    """Compare logits and the gradient of every parameter with those of `transformers`."""
    rows_RT = rows_for(config)
    theirs.set_attn_implementation("eager")
    logits_RTV = theirs(rows_RT[:, :-1]).logits
    loss = functional.cross_entropy(logits_RTV.flatten(0, 1), rows_RT[:, 1:].flatten())
    theirs.zero_grad()
    loss.backward()
    expected = {name: each.grad for name, each in theirs.named_parameters()}
    tensors = {name: torch.from_numpy(np.array(value)) for name, value in weights.items()}
    stage = Stage(config, whole_model(config), micro().optimizer, weights=tensors)
    with torch.no_grad():
        ours = stage._model(rows_RT[:, :-1])
    stage.forward(ItemNumber(0), UnitInputs(rows_RT))
    stage.backward(ItemNumber(0), None)
    gradients = stage.layout.views(stage.gradient_sum / len(rows_RT))
    assert gradients.keys() == expected.keys()
    distances = {name: _relative(gradients[name], expected[name]) for name in expected}
    where = max(distances, key=distances.__getitem__)
    return Apart(_relative(ours, logits_RTV), distances[where], where)


def _relative(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs.detach()).norm() / theirs.norm().detach())


def said(config: Any) -> dict[str, Any]:
    """The fields of a config of `transformers` that decide what is computed."""
    return {name: value for name, value in config.to_dict().items() if name not in IGNORED}
