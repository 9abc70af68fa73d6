"""What the parameters of a stage are called, and their shapes; without torch. Pure.

Invariant: names, shapes and order are those of `StageModel.named_parameters()` (a test compares
them), which are those of transformers' LlamaForCausalLM.
"""

from training.config import ModelConfig, StageSlice, shares_embedding

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"

Shape = tuple[int, ...]


def parameter_shapes(config: ModelConfig, stage: StageSlice) -> dict[str, Shape]:
    """Shape by name of everything that `stage` trains, in order."""
    shapes: dict[str, Shape] = {}
    is_shared = shares_embedding(config, stage)
    if stage.has_embedding and not is_shared:
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
    width, kv_width, ffn_width = config.width, config.kv_width, config.ffn_width
    return {
        "input_layernorm.weight": (width,),
        "self_attn.q_proj.weight": (width, width),
        "self_attn.k_proj.weight": (kv_width, width),
        "self_attn.v_proj.weight": (kv_width, width),
        "self_attn.o_proj.weight": (width, width),
        "post_attention_layernorm.weight": (width,),
        "mlp.gate_proj.weight": (ffn_width, width),
        "mlp.up_proj.weight": (ffn_width, width),
        "mlp.down_proj.weight": (width, ffn_width),
    }
