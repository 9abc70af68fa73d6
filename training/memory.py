"""How much memory a stage needs, in bytes. Pure; a planning figure, rounded up, never a price.

A peer is fullest between the passes of a step and its update. It has then
- the state: weights, two moments and the gradient, 4 bytes a parameter each, all fp32; with an
  adapter moments and gradient are of that alone;
- what the passes took, of which the heap gives back little: the forward graphs that waited for
  their backward, what a pass needs for a moment, and gaps (one byte in `GAPS`, seen with glibc);
- with local steps the sealed weights, a copy of them that the round began with, the outer momentum
  and the difference (`OF_LOCAL`);
- copies of buckets: a shard as bytes, as a vector, and the sum that it is added to; others on
  their way. One gradient comes on top of what the passes left, three where that was little.

Activations are what autograd keeps for a backward, per token and layer, counted tensor by tensor
from `models/decoder.py`; flash attention keeps its output and one number a head and token instead
of the T x T scores. The process itself (Python, torch, our modules: some 300 MB, shared by forks)
is not counted. `tests/numerics/test_memory.py` holds all that against the peak of real processes.
"""

from dataclasses import dataclass

from contracts.terms.messages import JobSpec
from training.config import ModelConfig, StageSlice, shares_embedding, slices_of
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
OF_LOCAL = 4  # vectors that a peer with local steps has beside all others
COMPARED = 5  # copies of a gradient at the end of an audit: two as bytes, two joined, one in pieces


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
    is_local: bool = False,
    num_vectors: int = 1,
) -> int:
    """Bytes that a peer of `stage` must have: with all graphs that it may keep at once.

    Args:
        config: The whole model.
        stage: What of it the peer has.
        rows_at_once: Of one forward pass.
        audits: It also replays somebody's claim meanwhile: weights and a gradient of its own, one
            more graph, and at the end both gradients that are compared, as bytes and as numbers.
        is_local: It takes local steps. A replay of them has moments and the weights that it
            began with too, and compares differences instead of gradients. No graph is more: each
            step, of work or of a replay, is done whole before the next.
        num_vectors: That a peer exchanges (`BatchSpec.num_vectors`): sealed moments are there once
            more, and travel.
    """
    memory, graphs = stage_memory(config, stage, rows_at_once), 1 if stage.has_head else MAX_GRAPHS
    trained = memory.gradient  # what of the weights changes, so is there more than once
    of_means = (num_vectors - 1) * trained
    of_local = OF_LOCAL * trained + 2 * of_means if is_local else 0
    if not audits:
        return memory.total(graphs) + of_local
    replay = trained + (1 + COMPARED * num_vectors) * memory.gradient
    if is_local:
        return memory.total(graphs) + of_local + replay + memory.moments + trained + of_means
    return memory.total(graphs + 1) + replay


def stage_memories(spec: JobSpec, config: ModelConfig) -> tuple[int, ...]:
    """What `peer_memory` is in each stage of a job; raises Refused: no cut of this model."""
    batch, audits = spec.batch, spec.rules.audit is not None
    return tuple(
        peer_memory(
            config,
            each,
            batch.rows_at_once,
            audits=audits,
            is_local=batch.local is not None,
            num_vectors=batch.num_vectors,
        )
        for each in slices_of(config, batch.layer_ends)
    )


def base_bytes(spec: JobSpec, config: ModelConfig, stage: StageSlice) -> int:
    """Of a file of weights to repeat work on, at most; with moments, if work starts from them."""
    num_tensors = 4 if spec.batch.num_vectors > 1 else 1
    return num_tensors * (HEAD_BYTES + FP32 * num_parameters(config, stage))


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
