"""What the parameters of a stage are called, and their shapes; without torch. Pure.

Invariant: names, shapes and order are those of `StageModel.named_parameters()` (a test compares
them), which are those of the model's family in transformers, and of `peft` for adapters.
"""

import math

from training.config import ModelConfig, StageSlice, holds_embedding, shares_embedding

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"

Shape = tuple[int, ...]


def parameter_shapes(config: ModelConfig, stage: StageSlice) -> dict[str, Shape]:
    """Shape by name of everything that `stage` trains, in order."""
    if config.adapter is None:
        return model_shapes(config, stage)
    return {
        f"model.layers.{number}.{name}": shape
        for number in range(stage.first_layer, stage.end_layer)
        for name, shape in _adapter_shapes(config).items()
    }


def adapter_parameters(config: ModelConfig) -> int:
    """Elements that are trained of one decoder layer beside its weights; 0 without an adapter."""
    return sum(map(math.prod, _adapter_shapes(config).values()))


def _adapter_shapes(config: ModelConfig) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {}
    if (adapter := config.adapter) is None:
        return shapes
    for name, shape in _layer_shapes(config).items():
        linear, _, kind = name.rpartition(".")
        if kind == "weight" and linear.rpartition(".")[2] in adapter.targets:
            shapes[f"{linear}.lora_A.weight"] = (adapter.rank, shape[1])
            shapes[f"{linear}.lora_B.weight"] = (shape[0], adapter.rank)
    return shapes


def model_shapes(config: ModelConfig, stage: StageSlice) -> dict[str, Shape]:
    """Shape by name of the weights of `stage`, trained or not, in order."""
    shapes: dict[str, Shape] = {}
    is_shared = shares_embedding(config, stage)
    if holds_embedding(config, stage) and not is_shared:
        shapes[EMBEDDING] = (config.vocab_size, config.width)
    for number in range(stage.first_layer, stage.end_layer):
        prefix = f"model.layers.{number}."
        shapes |= {prefix + name: shape for name, shape in _layer_shapes(config).items()}
    if stage.has_head:
        shapes["model.norm.weight"] = (config.width,)
        if not config.tied_head:
            shapes[HEAD] = (config.vocab_size, config.width)
    if is_shared:  # last: flat vectors end with what two stages share
        shapes[EMBEDDING] = (config.vocab_size, config.width)
    return shapes


def _layer_shapes(config: ModelConfig) -> dict[str, Shape]:
    width, ffn_width = config.width, config.ffn_width
    attention: dict[str, Shape] = {}
    for name, rows in (("q", config.q_width), ("k", config.kv_width), ("v", config.kv_width)):
        attention[f"self_attn.{name}_proj.weight"] = (rows, width)
        if config.qkv_bias:
            attention[f"self_attn.{name}_proj.bias"] = (rows,)
    attention["self_attn.o_proj.weight"] = (width, config.q_width)
    if config.qk_norm:
        attention |= {f"self_attn.{name}_norm.weight": (config.head_width,) for name in "qk"}
    return {
        "input_layernorm.weight": (width,),
        **attention,
        "post_attention_layernorm.weight": (width,),
        "mlp.gate_proj.weight": (ffn_width, width),
        "mlp.up_proj.weight": (ffn_width, width),
        "mlp.down_proj.weight": (width, ffn_width),
    }
