"""How much memory a stage needs, in bytes. Pure; a planning figure, rounded up, never a price.

Everything is fp32: weights, two moments, the gradient and the averaged gradient are 4 bytes a
parameter each. Activations are what autograd keeps for a backward, per token and layer, counted
tensor by tensor from `models/decoder.py`; flash attention keeps its output and one number a head
and token instead of the T x T scores. Scratch is the largest transient: logits and their gradient
on the last stage, the optimiser's blocks elsewhere.
"""

from dataclasses import dataclass

from training.config import ModelConfig, StageSlice
from training.flops import layer_matrix_parameters

FP32 = 4
OPTIMIZER_SCRATCH = 2**22


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes of one stage, part by part."""

    weights: int
    moments: int
    gradient: int
    average: int
    activations_per_unit: int
    scratch: int

    def total(self, kept_units: int = 1) -> int:
        """Bytes with the graphs of `kept_units` units waiting for their backward."""
        fixed = self.weights + self.moments + self.gradient + self.average + self.scratch
        return fixed + kept_units * self.activations_per_unit


def num_parameters(config: ModelConfig, stage: StageSlice) -> int:
    """Trainable elements of a stage."""
    layers = stage.num_layers * (layer_matrix_parameters(config) + 2 * config.width)
    embedding = config.vocab_size * config.width
    tied_here = config.tied_head and stage.has_embedding
    head = 0 if tied_here or not stage.has_head else embedding
    norm = config.width if stage.has_head else 0
    return layers + (embedding if stage.has_embedding else 0) + head + norm


def stage_memory(config: ModelConfig, stage: StageSlice, rows_per_unit: int) -> StageMemory:
    """Bytes that `stage` needs for units of `rows_per_unit` rows."""
    tokens = rows_per_unit * config.sequence_length
    parameters = FP32 * num_parameters(config, stage)
    logits = FP32 * tokens * config.vocab_size if stage.has_head else 0
    return StageMemory(
        weights=parameters,
        moments=2 * parameters,
        gradient=parameters,
        average=parameters,
        activations_per_unit=FP32 * tokens * _kept_per_token(config, stage) + logits,
        scratch=OPTIMIZER_SCRATCH + 2 * logits,
    )


def _kept_per_token(config: ModelConfig, stage: StageSlice) -> int:
    # Per layer: both norms keep input, normed value (4 D) and a scale each, attention keeps q, k, v
    # before and after rotation (2 (D + 2 K)), its output (D) and a log-sum per head, the MLP keeps
    # gate, up, the activated gate and the product (4 F). Ends: tokens or x, labels, the last norm.
    attention = 2 * (config.width + 2 * config.kv_width) + config.width + config.num_heads
    per_layer = 4 * config.width + 2 + attention + 4 * config.ffn_width
    ends = config.width + (2 * config.width + 6 if stage.has_head else 3)
    return stage.num_layers * per_layer + ends
