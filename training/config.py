"""What a job trains: model, optimiser and data as frozen, validated values. Pure.

Invariant: a value of these classes is consistent, so nothing below checks it again. They decide
the math alone; deployment and protocol settings live elsewhere (docs/architecture.md 1).
Units: widths in elements, sequence_length in tokens (a byte, where there is no tokenizer), seeds in
[0, 2**53).

The signed JobSpec holds the same values as scaled integers; `train_config` reads it, `model_spec`
and `optimizer_spec` write it, and one after the other is the identity on specs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, Literal, get_args

from contracts.terms.errors import Refused
from contracts.terms.ids import MAX_STAGES, ZERO_DIGEST, Digest
from contracts.terms.items import MAX_ITEMS
from contracts.terms.messages import (
    AdapterSpec,
    BatchSpec,
    DataSpec,
    ModelSpec,
    OptimizerSpec,
    Record,
)

Schedule = Literal["constant", "cosine", "linear", "wsd"]

BYTE_VOCABULARY = 256
MAX_WIDTH = 2**17
MAX_LAYERS = 1024
MAX_HEADS = 1024
MAX_FFN_WIDTH = 2**19
MAX_HEAD_WIDTH = 1024
MAX_SEQUENCE = 2**20
MAX_VOCABULARY = 2**20
MAX_SEED = 2**53 - 1
MAX_ADAPTER_SCALE = 64  # alpha / rank
MAX_STEPS = 10_000_000
MAX_ROPE_FACTOR = 10**6

_MILLIONTH = 10**6
_SCALES = {
    "norm_eps": 10**12,
    "rope_factor": _MILLIONTH,
    "rope_low_factor": _MILLIONTH,
    "rope_high_factor": _MILLIONTH,
    "learning_rate": 10**9,
    "beta1": _MILLIONTH,
    "beta2": _MILLIONTH,
    "epsilon": 10**15,
    "weight_decay": _MILLIONTH,
    "clip_norm": _MILLIONTH,
    "final_ratio": _MILLIONTH,
    "decay_ratio": _MILLIONTH,
}
"""Units of what messages hold as scaled integers (`contracts/terms/messages.py`)."""
_FIELDS = {"norm_eps": "norm_epsilon", "final_ratio": "final_rate"}
"""What messages call fields that have another name here."""


def scaled(name: str, value: float, scale: int) -> int:
    """`value` in units of 1/scale, as messages hold it; never rounded.

    Raises:
        Refused: it is finer than that.
    """
    units = round(value * scale)
    if units / scale != value:
        raise Refused(
            f"{name} = {value} is finer than 1/{scale}, which is all that is signed: write "
            f"{units / scale}"
        )
    return units


def _need(holds: bool, problem: str) -> None:
    if not holds:
        raise Refused(problem)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder of the Llama kind: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

    The defaults are plain Llama; what other families have besides is on by a field of its own.
    Positions are scaled as Llama 3.1 does it, unless `rope_factor` is 1: what turns more than
    `rope_high_factor` times in `rope_context` tokens stays, below `rope_low_factor` times it turns
    `rope_factor` times slower, between them it is mixed. Layers count from 0.

    Raises:
        Refused: a size is out of bounds or does not divide as attention needs.
    """

    vocab_size: int
    width: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    ffn_width: int
    sequence_length: int
    rope_theta: int = 10_000
    norm_eps: float = 1e-5
    tied_head: bool = False
    init_seed: int = 0
    head_dim: int = 0  # 0: width / num_heads
    qkv_bias: bool = False
    qk_norm: bool = False  # an RMSNorm of each head's query and key
    rope_factor: float = 1.0
    rope_low_factor: float = 1.0
    rope_high_factor: float = 4.0
    rope_context: int = 8192  # tokens
    window: int = 0  # tokens that a token sees, itself one of them; 0: all before it
    full_layers: tuple[int, ...] = ()  # that see all before a token in spite of the window
    unrotated_layers: tuple[int, ...] = ()  # without rotary positions
    adapter: AdapterSpec | None = None  # what is trained; None: all weights

    def __post_init__(self) -> None:
        """Refuse what the decoder could not compute."""
        for name, value, limit in (
            ("vocab_size", self.vocab_size, MAX_VOCABULARY),
            ("width", self.width, MAX_WIDTH),
            ("num_layers", self.num_layers, MAX_LAYERS),
            ("num_heads", self.num_heads, MAX_HEADS),
            ("num_kv_heads", self.num_kv_heads, MAX_HEADS),
            ("ffn_width", self.ffn_width, MAX_FFN_WIDTH),
            ("sequence_length", self.sequence_length, MAX_SEQUENCE),
        ):
            _need(0 < value <= limit, f"model {name} = {value}; it must be 1 to {limit}")
        _need(0 <= self.head_dim <= MAX_HEAD_WIDTH, f"model head_dim must be 0 to {MAX_HEAD_WIDTH}")
        _need(
            self.head_dim > 0 or self.width % self.num_heads == 0,
            "model width must be a multiple of num_heads",
        )
        _need(self.head_width % 2 == 0, "rotary positions need an even width per head")
        _need(
            self.num_heads % self.num_kv_heads == 0,
            "model num_heads must be a multiple of num_kv_heads",
        )
        _need(self.rope_theta > 1, "model rope_theta must be above 1")
        _need(0 < self.norm_eps < 1, "model norm_eps must be between 0 and 1")
        if self.adapter is not None:  # honest gradients are apart by as much more
            most = MAX_ADAPTER_SCALE * self.adapter.rank
            _need(self.adapter.alpha <= most, f"adapter alpha must be at most {most} at this rank")
        _need(0 <= self.init_seed <= MAX_SEED, "model init_seed must be 0 to 2**53 - 1")
        self._need_known_family()

    def _need_known_family(self) -> None:
        """Refuse what no family has: the model could be given to nobody."""
        _need(
            self.qkv_bias + self.qk_norm + bool(self.unrotated_layers) <= 1,
            "model qkv_bias, qk_norm and unrotated_layers are of different families: choose one",
        )
        _need(
            1 <= self.rope_factor <= MAX_ROPE_FACTOR
            and 0 < self.rope_low_factor < self.rope_high_factor <= MAX_ROPE_FACTOR,
            f"model rope_factor must be 1 to {MAX_ROPE_FACTOR}, rope_low_factor above 0 and below "
            "rope_high_factor",
        )
        _need(
            0 < self.rope_context <= MAX_SEQUENCE, f"model rope_context must be 1 to {MAX_SEQUENCE}"
        )
        _need(0 <= self.window <= MAX_SEQUENCE, f"model window must be 0 to {MAX_SEQUENCE}")
        for name, layers in (
            ("full_layers", self.full_layers),
            ("unrotated_layers", self.unrotated_layers),
        ):
            _need(
                list(layers) == sorted({*layers} & {*range(self.num_layers)}),
                f"model {name} must be layers, counted from 0, each once and ascending",
            )
        _need(
            len(self.full_layers) < (self.num_layers if self.window else 1),
            "model full_layers are the exceptions from a window, and not all layers",
        )

    @property
    def head_width(self) -> int:
        """Elements of one attention head."""
        return self.head_dim or self.width // self.num_heads

    @property
    def q_width(self) -> int:
        """Elements of all query heads."""
        return self.head_width * self.num_heads

    @property
    def kv_width(self) -> int:
        """Elements of all key heads (and of all value heads)."""
        return self.head_width * self.num_kv_heads

    @property
    def has_mask(self) -> bool:
        """Whether rows are longer than the window."""
        return 0 < self.window < self.sequence_length

    def window_of(self, layer: int) -> int:
        """Tokens that a token sees in a layer, itself one of them; 0: all before it."""
        return 0 if layer in self.full_layers else self.window


@dataclass(frozen=True, slots=True)
class StageSlice:
    """Which part of the decoder a stage holds: layers [first_layer, end_layer) and the ends."""

    first_layer: int
    end_layer: int
    has_embedding: bool
    has_head: bool

    @property
    def num_layers(self) -> int:
        """Decoder layers in this stage."""
        return self.end_layer - self.first_layer


@dataclass(frozen=True, slots=True)
class OptimizerConfig:
    """AdamW with decoupled decay of matrices, a global norm clip, warm-up and a schedule.

    `clip_norm` 0 means no clip. `final_ratio` is the rate that the schedule ends at, over the peak.
    `wsd` (warm-up, stable, decay) stays at the peak until the last `decay_ratio` of the steps.

    Raises:
        Refused: a value is out of range.
    """

    learning_rate: float
    total_steps: int
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    warmup_steps: int = 0
    schedule: Schedule = "cosine"
    final_ratio: float = 0.1
    decay_ratio: float = 0.2

    def __post_init__(self) -> None:
        """Refuse what AdamW could not apply."""
        _need(0 < self.learning_rate < 10, "optimizer learning_rate must be between 0 and 10")
        _need(0 <= self.beta1 < 1, "optimizer beta1 must be 0 or more and below 1")
        _need(0 <= self.beta2 < 1, "optimizer beta2 must be 0 or more and below 1")
        _need(0 < self.epsilon < 1, "optimizer epsilon must be between 0 and 1")
        _need(0 <= self.weight_decay < 10, "optimizer weight_decay must be 0 to 10")
        _need(0 <= self.clip_norm < 1e6, "optimizer clip_norm must be 0 (none) to 1e6")
        _need(0 < self.total_steps <= MAX_STEPS, f"optimizer total_steps must be 1 to {MAX_STEPS}")
        _need(
            0 <= self.warmup_steps <= self.total_steps,
            "optimizer warmup_steps must be 0 to total_steps",
        )
        known = get_args(Schedule)
        _need(self.schedule in known, f"optimizer schedule must be one of {', '.join(known)}")
        _need(0 <= self.final_ratio <= 1, "optimizer final_ratio must be 0 to 1")
        _need(0 < self.decay_ratio <= 1, "optimizer decay_ratio must be above 0, at most 1")


@dataclass(frozen=True, slots=True)
class DataConfig:
    """How the rows of the corpus become units and steps; `seed` orders the rows.

    Raises:
        Refused: a count is out of range.
    """

    rows_per_unit: int
    units_per_step: int
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse batches that a step could not hold."""
        _need(0 < self.rows_per_unit <= 65_536, "data rows_per_unit must be 1 to 65536")
        _need(0 < self.units_per_step <= MAX_ITEMS, f"data units_per_step must be 1 to {MAX_ITEMS}")
        _need(0 <= self.seed <= MAX_SEED, "data seed must be 0 to 2**53 - 1")

    @property
    def rows_per_step(self) -> int:
        """Rows of the global batch."""
        return self.rows_per_unit * self.units_per_step


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """Everything that decides the numbers of a run, but the corpus itself."""

    model: ModelConfig
    optimizer: OptimizerConfig
    data: DataConfig
    num_steps: int

    def __post_init__(self) -> None:
        """Refuse a length that the schedule does not cover."""
        _need(
            0 < self.num_steps <= self.optimizer.total_steps,
            "num_steps must be 1 to the optimizer's total_steps",
        )

    @property
    def tokens_per_step(self) -> int:
        """Tokens of the global batch."""
        return self.data.rows_per_step * self.model.sequence_length


def whole_model(config: ModelConfig) -> StageSlice:
    """The one stage that holds everything."""
    return StageSlice(0, config.num_layers, has_embedding=True, has_head=True)


def holds_embedding(config: ModelConfig, stage: StageSlice) -> bool:
    """Whether `stage` has the embedding, or a copy of it as its head."""
    return stage.has_embedding or (config.tied_head and stage.has_head)


def shares_embedding(config: ModelConfig, stage: StageSlice) -> bool:
    """Whether `stage` trains one of two copies of the embedding, which are kept equal."""
    is_trained = config.tied_head and config.adapter is None
    return is_trained and stage.has_embedding != stage.has_head


def slices_of(config: ModelConfig, layer_ends: Sequence[int]) -> tuple[StageSlice, ...]:
    """The stages of a decoder that is cut after these numbers of layers.

    Raises:
        Refused: no cut of this decoder.
    """
    starts = (0, *layer_ends)
    _need(
        1 <= len(layer_ends) <= MAX_STAGES
        and layer_ends[-1] == config.num_layers
        and all(start < end for start, end in pairwise(starts)),
        f"layer_ends {list(layer_ends)} do not cut {config.num_layers} layers into 1 to "
        f"{MAX_STAGES} stages: each end is above the one before, the last is {config.num_layers}",
    )
    return tuple(
        StageSlice(start, end, has_embedding=start == 0, has_head=end == config.num_layers)
        for start, end in pairwise(starts)
    )


def train_config(
    model: ModelSpec, optimizer: OptimizerSpec, data: DataSpec, batch: BatchSpec
) -> TrainConfig:
    """The configuration that these parts of a JobSpec sign.

    Raises:
        Refused: sizes that each fit their field and do not fit each other.
    """
    read = _read(OptimizerConfig, optimizer)
    return TrainConfig(
        model=ModelConfig(**_read(ModelConfig, model)),
        optimizer=OptimizerConfig(**read, total_steps=batch.optimizer_steps),
        data=DataConfig(batch.rows_per_unit, batch.units_per_step, data.seed),
        num_steps=batch.steps,
    )


def model_spec(config: ModelConfig, *, weights: Digest = ZERO_DIGEST) -> ModelSpec:
    """What the poster signs for `config`; `weights` names the blob that training starts from.

    Raises:
        Refused: a number is finer than its message field.
    """
    return ModelSpec(**_written("model", config), weights=weights)


def optimizer_spec(config: OptimizerConfig) -> OptimizerSpec:
    """What the poster signs for `config`.

    Raises:
        Refused: a number is finer than its message field.
    """
    return OptimizerSpec(**_written("optimizer", config))


def _read(config: type, spec: Record) -> dict[str, Any]:
    values = {name: getattr(spec, _FIELDS.get(name, name)) for name in _signed(config)}
    return {
        name: each / _SCALES[name] if name in _SCALES else each for name, each in values.items()
    }


def _written(what: str, config: ModelConfig | OptimizerConfig) -> dict[str, Any]:
    found = {}
    for name in _signed(type(config)):
        value = getattr(config, name)
        if scale := _SCALES.get(name):
            value = scaled(f"{what} {name}", value, scale)
        found[_FIELDS.get(name, name)] = value
    return found


def _signed(config: type) -> list[str]:
    """Fields of a configuration that its message holds; the steps stand in the BatchSpec."""
    return [each.name for each in fields(config) if each.name != "total_steps"]
