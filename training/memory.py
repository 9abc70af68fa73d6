"""How much memory a stage needs, in bytes. Pure; a planning figure, rounded up, never a price.

A peer is fullest between the passes of a step and its update. It has then
- the state: weights, two moments and the gradient, 4 bytes a parameter each, all fp32; with an
  adapter moments and gradient are of that alone;
- what the passes took, of which the heap gives back little: the forward graphs that waited for
  their backward, what a pass needs for a moment, and gaps (one byte in `GAPS`, seen with glibc);
- what its strategy holds beside (`Footprint`);
- copies of buckets: a shard as bytes, as a vector, and the sum that it is added to; others on
  their way. One gradient comes on top of what the passes left, three where that was little.

Activations are what autograd keeps for a backward, per token and layer, counted tensor by tensor
from `models/decoder.py`; flash attention keeps its output and one number a head and token instead
of the T x T scores. The process itself (Python, torch, our modules: some 300 MB, shared by forks)
is not counted. `tests/numerics/test_memory.py` holds all that against the peak of real processes.
"""

from dataclasses import dataclass

from training.config import ModelConfig, StageSlice, shares_embedding
from training.flops import layer_matrix_parameters
from training.models.parameters import adapter_parameters

FP32 = 4
HEAD_BYTES = 2**20
"""Names and shapes before the tensors of a stage, at most."""
LIBRARIES = 5 * 2**24
"""What torch loads when it first computes: 48 MB on one machine, some 30 MB more on another."""
GAPS = 4  # one byte of gap for so many bytes of graphs
MAX_GRAPHS = 8
"""Forward graphs that a stage keeps for their backward; the last stage does both at once."""
WINDOW_BLOCK = 512
"""Queries of windowed attention that are done at once, so that its mask does not grow with rows."""
COPIES = 3  # of the gradient at once: of one bucket, where it is all of it
COPIES_ON_TOP = 1  # of what the passes left
COMPARED = 5  # copies of a gradient at the end of an audit: two as bytes, two joined, one in pieces


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a strategy's peers hold, in fp32 vectors of what a stage trains.

    By default what it takes to send a gradient and apply its mean at each step (`EVERY_STEP`).
    """

    at_work: int = 0  # in memory, beside weights, gradient and both moments
    in_replay: int = 0  # in memory, beside weights, gradient and what is compared
    replayed_graphs: int = 1  # forward graphs that a replay has beside those of work
    exchanged: int = 1  # that are cut into buckets, and compared by a replay
    checkpoint: int = 3  # on disk
    round_in_work: int = 0  # on disk
    base: int = 1  # in a file that a replay starts from
    remedy: str = "more stages"  # makes all of it smaller


EVERY_STEP = Footprint()


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes of one stage, part by part."""

    weights: int
    moments: int
    gradient: int
    activations_per_unit: int
    scratch: int

    @property
    def state(self) -> int:
        """What is there all the time."""
        return LIBRARIES + self.weights + self.moments + self.gradient

    def total(self, kept_units: int = 1) -> int:
        """Bytes with the graphs of `kept_units` units waiting for their backward."""
        graphs = kept_units * self.activations_per_unit + self.scratch
        passes = graphs + graphs // GAPS
        return self.state + max(passes + COPIES_ON_TOP * self.gradient, COPIES * self.gradient)


def num_parameters(config: ModelConfig, stage: StageSlice) -> int:
    """Trainable elements of a stage."""
    if config.adapter is not None:
        return stage.num_layers * adapter_parameters(config)
    return num_weights(config, stage)


def num_weights(config: ModelConfig, stage: StageSlice) -> int:
    """Elements of a stage's part of the model, without adapters."""
    layers = stage.num_layers * (layer_matrix_parameters(config) + _layer_vectors(config))
    embedding = config.vocab_size * config.width
    is_one_matrix = config.tied_head and stage.has_embedding and stage.has_head
    ends = stage.has_embedding + stage.has_head - is_one_matrix  # copies of a shared one count each
    norm = config.width if stage.has_head else 0
    return layers + ends * embedding + norm


def _layer_vectors(config: ModelConfig) -> int:
    """Elements of a layer's norms and biases."""
    biases = config.q_width + 2 * config.kv_width if config.qkv_bias else 0
    return 2 * config.width + biases + (2 * config.head_width if config.qk_norm else 0)


def num_shared(config: ModelConfig, stage: StageSlice) -> int:
    """Elements of a stage that another one has too: they are the last of its flat vectors."""
    return config.vocab_size * config.width if shares_embedding(config, stage) else 0


def stage_memory(config: ModelConfig, stage: StageSlice, rows_per_unit: int) -> StageMemory:
    """Bytes that `stage` needs for units of `rows_per_unit` rows."""
    tokens = rows_per_unit * config.sequence_length
    parameters = FP32 * num_parameters(config, stage)
    frozen = 0 if config.adapter is None else FP32 * num_weights(config, stage)
    logits = FP32 * tokens * config.vocab_size if stage.has_head else 0
    mask = FP32 * WINDOW_BLOCK * (WINDOW_BLOCK + config.window) if config.has_mask else 0
    return StageMemory(
        weights=parameters + frozen,
        moments=2 * parameters,
        gradient=parameters,
        activations_per_unit=FP32 * tokens * _kept_per_token(config, stage) + logits,
        scratch=FP32 * tokens * 4 * (config.ffn_width + config.width) + 2 * logits + mask,
    )


def peer_memory(
    config: ModelConfig,
    stage: StageSlice,
    rows_at_once: int,
    *,
    audits: bool = False,
    footprint: Footprint = EVERY_STEP,
) -> int:
    """Bytes that a peer of `stage` must have: with all graphs that it may keep at once.

    Args:
        config: The whole model.
        stage: What of it the peer has.
        rows_at_once: Of one forward pass.
        audits: It also replays somebody's claim meanwhile: weights and a gradient of its own, one
            more graph, and at the end both gradients that are compared, as bytes and as numbers.
        footprint: Of the job's strategy.
    """
    memory, graphs = stage_memory(config, stage, rows_at_once), 1 if stage.has_head else MAX_GRAPHS
    at_work = memory.total(graphs) + footprint.at_work * memory.gradient
    if not audits:
        return at_work
    vectors = 2 + footprint.in_replay + COMPARED * footprint.exchanged
    more_graphs = memory.total(graphs + footprint.replayed_graphs) - memory.total(graphs)
    return at_work + vectors * memory.gradient + more_graphs


def _kept_per_token(config: ModelConfig, stage: StageSlice) -> int:
    # Per layer: both norms keep input, normed value (4 D) and a scale each, attention keeps q, k, v
    # before and after rotation (2 (Q + 2 K)), its output (Q) and a log-sum per head, the MLP keeps
    # gate, up, the activated gate and the product (4 F). Norms of heads keep as much of q and k.
    # With a window the output is put together from blocks, so it is there twice. Ends: tokens or x,
    # and y, or else labels and the last norm.
    q_width, kv_width = config.q_width, config.kv_width
    attention = 2 * (q_width + 2 * kv_width) + q_width + config.num_heads
    if config.qk_norm:
        attention += 2 * (q_width + kv_width) + config.num_heads + config.num_kv_heads
    if config.has_mask:
        attention += q_width
    per_layer = 4 * config.width + 2 + attention + 4 * config.ffn_width
    if (adapter := config.adapter) is not None:  # A x, of each target
        per_layer += adapter.rank * len(adapter.targets)
    ends = config.width + (2 * config.width + 6 if stage.has_head else config.width + 3)
    return stage.num_layers * per_layer + ends
