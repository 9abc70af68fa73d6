"""How much work a unit is: model FLOPs of one unit through a stage, forward and backward. Pure.

Invariant: an exact integer of the config alone, never of a device, so anybody derives the price.
Formula (Chowdhery et al. 2022, PaLM, appendix B; the same as Kaplan et al. 2020, table 1): a
multiply-add is 2 FLOPs; per token a matrix of P parameters costs 2 P forward, and attention costs
2 T A for the scores and 2 T A for the mix (T = tokens of the row, A = heads x head width, no
discount for the causal half, nor for a window). Backward costs twice the forward. Embedding lookup,
norms, biases, rotary positions, softmax and the loss are not counted; a tied head is counted where
it multiplies.

With an adapter the matrices have no gradient of their own, so each costs 2 P less: 4 P a token,
forward and input gradient. Its two factors, of A parameters, cost 6 A.
"""

from contracts.terms.amounts import Flops
from training.config import ModelConfig, StageSlice
from training.models.parameters import adapter_parameters

FORWARD_AND_BACKWARD = 3


def layer_matrix_parameters(config: ModelConfig) -> int:
    """Parameters of one decoder layer that multiply every token."""
    attention = 2 * config.width * (config.q_width + config.kv_width)
    return attention + 3 * config.width * config.ffn_width


def forward_flops_per_token(config: ModelConfig, stage: StageSlice) -> Flops:
    """Model FLOPs of one token's forward pass through `stage`."""
    attention = 4 * config.sequence_length * config.q_width
    parameters = layer_matrix_parameters(config) + adapter_parameters(config)
    layers = stage.num_layers * (2 * parameters + attention)
    head = 2 * config.width * config.vocab_size if stage.has_head else 0
    return Flops(layers + head)


def item_flops(config: ModelConfig, stage: StageSlice, rows_per_unit: int) -> Flops:
    """Model FLOPs of one unit of `rows_per_unit` rows: forward plus backward through `stage`."""
    tokens = rows_per_unit * config.sequence_length
    per_token = FORWARD_AND_BACKWARD * forward_flops_per_token(config, stage)
    if config.adapter is not None:
        head = config.width * config.vocab_size if stage.has_head else 0
        per_token -= 2 * (stage.num_layers * layer_matrix_parameters(config) + head)
    return Flops(tokens * per_token)
