"""What may a poster write in a job file? The one place that says it: names, units, bounds, words.

The file is data, never a program. Relative paths in it are relative to the file, and `~` is the
home folder. Amounts are in tokens, prices in tokens per PFLOP, spans as `90s`, `30m`, `2h` or `1d`,
memory as `8GiB`. What is left out takes the recipe's value or the default that the field shows
here. The JSON schema for editors (`job_schema`), what a refusal says (`job_text`) and the
comments of a starter file (`sample`) are all made from the fields below.

`model` changes fields of the recipe's model, or names what is trained further: a folder of
`transformers`, or a job. Of that only the length of the rows may be changed:
`{folder: F, sequence_length: N}`.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import timedelta
from fractions import Fraction
from functools import cache
from math import ceil
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from annotated_types import Ge, Gt, Le, Lt
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Strict,
    Tag,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)
from pydantic.json_schema import GenerateJsonSchema

from contracts.settings import expanded
from contracts.terms.amounts import BASE_UNITS_PER_TOKEN, UINT64_MAX, read_tokens
from contracts.terms.errors import Malformed, NotFound, Refused
from contracts.terms.ids import MAX_CHUNKS, MAX_PEERS, MAX_STAGES
from contracts.terms.items import MAX_ITEMS
from contracts.terms.messages import AdapterSpec, CodecName, LinearName, ShardCodecName
from tallystick.sdk.job_text import Text, complain, nearest, read_text
from training.compression.formats import SEEDED
from training.config import (
    MAX_FFN_WIDTH,
    MAX_HEAD_WIDTH,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_ROPE_FACTOR,
    MAX_SEED,
    MAX_SEQUENCE,
    MAX_STEPS,
    MAX_VOCABULARY,
    MAX_WIDTH,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    Schedule,
    TrainConfig,
)
from training.recipes import RECIPES

MAX_SPAN_DAYS = 36_500
MAX_ROWS = 65_536  # of a unit

_SPAN = re.compile(r"([0-9]{1,12})\s*([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_SIZE = re.compile(r"([0-9]{1,9})\s*([KMGT])iB")
_MODEL_JOB = r"[0-9a-f]{64}(@[1-9][0-9]{0,6})?"
_BYTES = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


# ----------------------------------------------------------------------------- words of a person


def price(value: object) -> int:
    """Base units a PFLOP of a price that a person wrote in tokens per PFLOP.

    Raises:
        ValueError: as `read_tokens`, or nothing, or more than a price can be.
    """
    found = read_tokens(value)
    if not 1 <= found <= UINT64_MAX:
        most = UINT64_MAX // BASE_UNITS_PER_TOKEN
        raise ValueError(f"a price is above 0 and at most {most} tokens per PFLOP, e.g. 2000")
    return found


def span(value: object) -> timedelta:
    """A span that a person wrote: `90s`, `30m`, `2h`, `1d`.

    Raises:
        ValueError: anything else.
    """
    match = _SPAN.fullmatch(str(value).strip())
    seconds = int(match[1]) * _SECONDS[match[2]] if match else 0
    if not 0 < seconds <= MAX_SPAN_DAYS * _SECONDS["d"]:
        raise ValueError("a span is a number with s, m, h or d, e.g. 90s or 2h")
    return timedelta(seconds=seconds)


def size(value: object) -> int:
    """Bytes of a memory that a person wrote: `512MiB`, `8GiB`.

    Raises:
        ValueError: anything else.
    """
    match = _SIZE.fullmatch(str(value).strip())
    if match is None or not int(match[1]):
        raise ValueError("a memory is a number with KiB, MiB, GiB or TiB, e.g. 8GiB")
    return int(match[1]) * _BYTES[match[2]]


def model_job(value: object) -> str:
    """A job, with @ and a step if one is meant: `JOB` or `JOB@200`.

    Raises:
        ValueError: anything else.
    """
    if re.fullmatch(_MODEL_JOB, str(value)) is None:
        raise ValueError("it is the id of a job, or one with @ and a step behind it, as JOB@200")
    return str(value)


def _none(value: object) -> object:
    return "none" if value is None else value  # YAML reads a bare null as nothing


def _checking(value: object) -> object:
    if isinstance(value, bool):
        return "on" if value else "off"  # YAML 1.1 reads a bare on and off as true and false
    return value


def _kind(value: object) -> str:
    """Which alternative of a union is meant, so that a refusal is of that one alone."""
    return "text" if isinstance(value, str) else "list" if isinstance(value, list) else "other"


# ------------------------------------------------------------------------------- kinds of fields

_AMOUNT = r"^[0-9]+(\.[0-9]{1,6})?$"


def _amount(unit: str, **least: int) -> WithJsonSchema:
    kinds = [{"type": "number", **least}, {"type": "string", "pattern": _AMOUNT}]
    return WithJsonSchema({"anyOf": kinds, "x-unit": unit})


def _with_unit(pattern: str, units: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": pattern, "x-unit": f"{units}, as written"})


Whole = Annotated[int, Strict(), Ge(1)]
Count = Annotated[int, Strict(), Ge(0)]
Number = Annotated[float, Strict()]
Layer = Annotated[Count, Lt(MAX_LAYERS)]
Part = Annotated[Number, Ge(0), Le(1)]
Tokens = Annotated[int, BeforeValidator(read_tokens), _amount("tokens", minimum=0)]
Price = Annotated[int, BeforeValidator(price), _amount("tokens per PFLOP", exclusiveMinimum=0)]
Span = Annotated[
    timedelta,
    BeforeValidator(span),
    _with_unit(r"^\s*[0-9]{1,12}\s*[smhd]\s*$", "s, m, h or d"),
]
Size = Annotated[
    int,
    BeforeValidator(size),
    _with_unit(r"^\s*[0-9]{1,9}\s*[KMGT]iB\s*$", "KiB, MiB, GiB or TiB"),
]
ModelJob = Annotated[
    str,
    BeforeValidator(model_job),
    WithJsonSchema({"type": "string", "pattern": f"^{_MODEL_JOB}$"}),
]
Recipe = Annotated[str, WithJsonSchema({"type": "string", "enum": sorted(RECIPES)})]
Checking = Annotated[
    Literal["off", "on"],
    BeforeValidator(_checking),
    WithJsonSchema({"enum": ["off", "on", False, True]}),
]
BoundaryCodec = Annotated[CodecName, BeforeValidator(_none)]
ShardCodec = Annotated[ShardCodecName | None, BeforeValidator(_none)]
Strategy = Literal["every_step", "local"]
Objective = Literal["pretrain", "sft"]


def _in_one_line(schema: dict[str, Any]) -> None:
    for field in schema["properties"].values():
        field["description"] = " ".join(field["description"].split()).removesuffix(".")


_TEXTS = {"items": {"type": "string"}, "type": "array"}


class Fields(BaseModel):
    """Fields that a person may write; the docstring below each is its description."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        json_schema_extra=_in_one_line,
    )


class ModelFields(Fields):
    """What of the recipe's model is different; of a folder's only its `sequence_length` may be."""

    folder: str | None = None
    """A folder that transformers saved: training goes on from it."""
    job: ModelJob | None = None
    """Instead of a folder: a job, JOB or JOB@STEP, whose model is downloaded as one; without a step
    the newest that is published. Of an adapter with it in the weights."""
    vocab_size: Annotated[Whole | None, Le(MAX_VOCABULARY)] = None
    """Different tokens that it knows."""
    width: Annotated[Whole | None, Le(MAX_WIDTH)] = None
    """Elements of a token inside the model; a multiple of num_heads."""
    num_layers: Annotated[Whole | None, Le(MAX_LAYERS)] = None
    """Decoder layers."""
    num_heads: Annotated[Whole | None, Le(MAX_HEADS)] = None
    """Attention heads of a layer."""
    num_kv_heads: Annotated[Whole | None, Le(MAX_HEADS)] = None
    """Heads for keys; num_heads is a multiple."""
    ffn_width: Annotated[Whole | None, Le(MAX_FFN_WIDTH)] = None
    """Width of the feed-forward part."""
    sequence_length: Annotated[Whole | None, Le(MAX_SEQUENCE)] = None
    """Tokens of a row."""
    rope_theta: Annotated[int | None, Strict(), Gt(1)] = None
    """Base of the rotary positions."""
    norm_eps: Annotated[Number | None, Gt(0), Lt(1)] = None
    """Added to the mean square in a norm."""
    tied_head: Annotated[bool | None, Strict()] = None
    """Whether head and embedding are one matrix."""
    init_seed: Annotated[Count | None, Le(MAX_SEED)] = None
    """The first weights are drawn from it."""
    head_dim: Annotated[Count | None, Le(MAX_HEAD_WIDTH)] = None
    """Width of a head; 0: width / num_heads."""
    qkv_bias: Annotated[bool | None, Strict()] = None
    """Whether queries, keys and values have biases, as in Qwen2."""
    qk_norm: Annotated[bool | None, Strict()] = None
    """Whether each head's query and key is normed, as in Qwen3."""
    rope_factor: Annotated[Number | None, Ge(1), Le(MAX_ROPE_FACTOR)] = None
    """How many times slower the slowest positions turn, as in Llama 3.1; 1: as they are."""
    rope_low_factor: Annotated[Number | None, Gt(0), Le(MAX_ROPE_FACTOR)] = None
    """What turns fewer times in rope_context is slowed."""
    rope_high_factor: Annotated[Number | None, Gt(0), Le(MAX_ROPE_FACTOR)] = None
    """What turns more often in rope_context is not slowed."""
    rope_context: Annotated[Whole | None, Le(MAX_SEQUENCE)] = None
    """Tokens that the positions were made for before they were slowed."""
    window: Annotated[Count | None, Le(MAX_SEQUENCE)] = None
    """Tokens that a token sees, as in Mistral; 0: all before it."""
    full_layers: tuple[Layer, ...] | None = None
    """Layers, counted from 0, that have no window."""
    unrotated_layers: tuple[Layer, ...] | None = None
    """Layers, counted from 0, without rotary positions, as in SmolLM3."""

    @field_validator("job")
    @classmethod
    def _instead_of_a_folder(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("folder") is not None:
            raise ValueError("folder says already what training starts from: leave one of both out")
        return value


class AdapterFields(Fields):
    """LoRA: small matrices that are trained beside those of the model, which stay as they are."""

    rank: Annotated[Whole, Le(1024)] = 8
    """Of the two matrices that are trained for each target."""
    alpha: Annotated[Whole, Le(2**20)] = 16
    """Their product counts alpha / rank times."""
    targets: Annotated[
        Annotated[Literal["all-linear"], Tag("text")]
        | Annotated[list[LinearName], Field(min_length=1), Tag("list")],
        Discriminator(_kind),
    ] = "all-linear"
    """Linear layers that have an adapter: `all-linear`, or some of q_proj, k_proj, v_proj, o_proj,
    gate_proj, up_proj and down_proj."""

    def spec(self) -> AdapterSpec:
        """As the poster signs it."""
        names = get_args(LinearName) if self.targets == "all-linear" else self.targets
        return AdapterSpec(rank=self.rank, alpha=self.alpha, targets=tuple(sorted(set(names))))


class OptimizerFields(Fields):
    """What of the recipe's AdamW is different."""

    learning_rate: Annotated[Number | None, Gt(0), Lt(10), Field(examples=[0.002])] = None
    """Peak of the learning rate."""
    beta1: Annotated[Number | None, Ge(0), Lt(1)] = None
    """Decay of the first moment."""
    beta2: Annotated[Number | None, Ge(0), Lt(1)] = None
    """Decay of the second moment."""
    epsilon: Annotated[Number | None, Gt(0), Lt(1)] = None
    """Added to the root of the second moment."""
    weight_decay: Annotated[Number | None, Ge(0), Lt(10)] = None
    """Decoupled decay of matrices."""
    clip_norm: Annotated[Number | None, Ge(0), Lt(1e6)] = None
    """Largest norm of a gradient; 0: none."""
    warmup_steps: Annotated[Count | None, Le(MAX_STEPS)] = None
    """Steps until the rate is at its peak."""
    schedule: Schedule | None = None
    """How the rate goes on after the warm-up: constant; down to final_ratio along a cosine or
    linearly; or wsd, constant until the last decay_ratio of all steps, then down linearly."""
    final_ratio: Annotated[Number | None, Ge(0), Le(1)] = None
    """Rate that the schedule ends at, over the peak."""
    decay_ratio: Annotated[Number | None, Gt(0), Le(1)] = None
    """Of the schedule wsd: the part of all steps in which it goes down."""

    @field_validator("decay_ratio")
    @classmethod
    def _only_of_wsd(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is not None and info.data.get("schedule") != "wsd":
            raise ValueError("it is of the schedule wsd: add `schedule: wsd`, or leave it out")
        return value


USUAL_CLASS = "cpu/x86_64/AVX2/torch-2.13.0"
"""A device class where a job needs one and nobody has said which."""


class LocalFields(Fields):
    """Rounds of local steps: each peer takes some by itself, then all average what they changed."""

    inner_steps: Annotated[Whole, Le(1024)] = 50
    """Optimiser steps of a unit."""
    segments: Annotated[Whole, Le(1024)] = 1
    """Units of a peer in a round."""
    rewarm_steps: Annotated[Whole, Le(10_000)] = 5
    """Steps in which the learning rate rises again in each round of moments that restart."""
    moments: Literal["restart", "mean"] = "restart"
    """What AdamW starts a round with: restart, from nothing, or mean, the average of what all had
    at the end of the one before; for that peers send 8 bytes a weight more, 16 without a codec."""
    overlap: bool = False
    """Peers begin with the next round while this one is exchanged, and add what it brings when it
    is there: more tokens per second, which teach less. Of moments: restart."""
    outer_rate: Annotated[Number, Gt(0), Le(10)] = 1.0
    """Part of the averaged change that is taken."""
    outer_momentum: Annotated[Number, Ge(0), Lt(1)] = 0.0
    """Part of the changes before that is taken too (Nesterov)."""
    round_time: Span = timedelta(seconds=60)
    """In which a peer begins units of a round."""
    quorum: Annotated[Whole | None, Le(MAX_PEERS)] = None
    """Providers whose work makes an update, at least; without it more than half of the peers."""


class StopEarlyFields(Fields):
    """When a job ends before its last step, by its losses on the validation rows."""

    patience: Annotated[Whole, Le(10_000)] = 3
    """Validations in a row that are no better than the best one before: then it ends."""
    min_delta: Annotated[Number, Ge(0), Le(1000)] = 0.0
    """Nats per token by which a better loss is lower; 0: any lower one is."""


class DataFields(Fields):
    """Where documents are, and which field of a record is one."""

    sources: Annotated[
        list[str],
        BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
        WithJsonSchema({"anyOf": [{"type": "string"}, _TEXTS]}),
        Field(alias="from"),
    ]
    """Patterns of files, or URLs: text, JSON lines, Parquet, folders of Dataset.save_to_disk."""
    field: str = "text"
    """Of JSON lines, Parquet and saved datasets, the field or column with the text."""


class JobFile(Fields):
    """A job as its poster writes it."""

    name: Annotated[str, Field(min_length=1, max_length=256, examples=["a job"])]
    """What the job is called."""
    budget: Annotated[Tokens, Field(examples=[10])]
    """The most that the job may cost, its audits included; the rest comes back. About a quarter
    more than it is expected to cost, for providers that come and go."""
    price_ceiling: Annotated[Price, Field(examples=[2000])]
    """The most that 1e15 model FLOPs may cost; the market pays the lowest losing ask."""
    deadline: Annotated[Span, Field(examples=["1h"])]
    """How long after posting the job ends at the latest, done or not."""
    recipe: Recipe = "tiny_llama"
    """A complete configuration that the fields below change."""
    model: Annotated[
        Annotated[str, Tag("text")] | Annotated[ModelFields, Tag("other")],
        Discriminator(_kind),
        Field(examples=[{"width": 256, "num_layers": 4}, "path/to/llama"]),
    ] = ModelFields()
    """Fields of the recipe's model that differ, or a folder that transformers saved."""
    adapter: Annotated[AdapterFields | None, Field(examples=[{"rank": 8}])] = None
    """Train an adapter (LoRA) of the folder's model, whose own weights never change; without it all
    weights are trained."""
    tokenizer: Annotated[str | None, Field(examples=["path/to/tokenizer.json"])] = None
    """A tokenizer.json; without one the folder's own, else one token a byte."""
    optimizer: Annotated[OptimizerFields, Field(examples=[{"learning_rate": 0.002}])] = (
        OptimizerFields()
    )
    """Fields of the recipe's optimizer that differ."""
    data: Annotated[
        Annotated[str, Tag("text")]
        | Annotated[list[str], Tag("list")]
        | Annotated[DataFields, Tag("other")],
        Discriminator(_kind),
        Field(
            examples=[
                "builtin",
                "texts/*.txt",
                {"from": ["s3://bucket/*.parquet"], "field": "text"},
            ]
        ),
    ] = "builtin"
    """Text to train on: patterns of files or URLs, a folder of `tallystick data prepare`, or
    `builtin` for Python's sources."""
    data_seed: Annotated[Count, Le(MAX_SEED)] = 0
    """The order of the rows is drawn from it."""
    strategy: Strategy = "every_step"
    """How peers train together: every_step averages each gradient, exactly; local lets whole
    replicas take many steps each and average what they changed, for slow lines."""
    local: Annotated[LocalFields, Field(examples=[{"inner_steps": 50}])] = LocalFields()
    """Of the strategy local: its rounds."""
    objective: Objective = "pretrain"
    """What the loss counts: pretrain every token of a text; sft, in chats, the assistant's turns.
    Then `data` names files of JSON lines with `messages`, and the tokenizer has a chat template."""
    steps: Annotated[Whole | None, Le(MAX_STEPS), Field(examples=[60])] = None
    """Optimiser updates; with strategy local rounds, of local.inner_steps x local.segments each."""
    passes: Annotated[Number | None, Gt(0), Le(MAX_STEPS), Field(examples=[1.5])] = None
    """Instead of steps: how often the training rows are gone through, rounded up to whole steps."""
    units_per_step: Annotated[Whole | None, Le(MAX_ITEMS)] = None
    """Micro-batches of a step; the global batch is these times their rows. With strategy local
    always peers_per_stage x local.segments, so it is left out."""
    rows_per_unit: Annotated[Whole | None, Le(MAX_ROWS)] = None
    """Rows that a peer computes at once."""
    stages: Annotated[Whole, Le(MAX_STAGES)] = 1
    """Parts that the model is cut into, each on peers of its own."""
    layer_ends: Annotated[list[Whole] | None, Field(examples=[[1, 3]])] = None
    """After which layers the model is cut; without it the busiest stage gets the least work."""
    peer_memory: Annotated[Size | None, Field(examples=["8GiB"])] = None
    """What a peer has at most; a cut that needs more is refused."""
    peers_per_stage: Annotated[Whole, Le(MAX_PEERS)] = 1
    """Providers that share the work of a stage, each with another owner."""
    spares: Annotated[Count, Le(MAX_PEERS)] = 0
    """Providers more, where there are any."""
    chunks: Annotated[Whole | None, Le(MAX_CHUNKS)] = None
    """Pieces that a gradient is summed in; without it two a peer."""
    boundary_codec: BoundaryCodec = "none"
    """How tensors between stages are packed, where there are several; none is exact."""
    gradient_codec: Annotated[ShardCodec, Field(examples=["none"])] = None
    """How gradients inside a stage are packed; none is exact, and the default. With strategy local
    how a peer's change is: in 4 bits (seeded4) by default, or 8 (seeded8)."""
    checkpoint_every: Whole = 10
    """Steps between two checkpoints."""
    publish_every: Count = 0
    """Steps after which the weights can be downloaded while the job runs, again and again; a
    multiple of checkpoint_every. 0: at its end alone."""
    validate_every: Whole | None = None
    """Steps between two validations; without it one at the end."""
    stop_early: Annotated[StopEarlyFields | None, Field(examples=[{"patience": 3}])] = None
    """When the job ends before its last step; without it never. What is not trained is not paid."""
    checking: Checking = "off"
    """Whether some of the work is drawn by lot, done again by strangers and compared."""
    device_class: Annotated[str | None, Field(examples=["cpu/x86_64/AVX2/torch-2.13.0"])] = None
    """The one device class of all who work and audit; a checked job of strategy local needs it, as
    only replays of one class follow many steps. `tallystick market show` lists what is offered."""
    audit_rate: Annotated[Number, Ge(0.01), Le(1)] = 0.05
    """Of the peer-steps, the part that is drawn at least (q's floor)."""
    sum_audit_rate: Part = 0.1
    """Of the averaged chunks, the part that is drawn."""
    repeat_rate: Part = 0.2
    """Of the reports, the part that an outside auditor repeats."""
    audit_budget: Annotated[Tokens | None, Field(examples=[2.5])] = None
    """Of the budget, what audits may cost; without it a quarter, or what several steps drawn whole
    need."""
    min_stake: Annotated[Tokens | None, Field(examples=[5])] = None
    """What each provider puts at stake and loses if it cheats; without it 0, or of a checked job
    what brings its draws to audit_rate, as far as twice the wanted providers can put it up."""
    burst: Annotated[Tokens | None, Field(examples=[5])] = None
    """What the coordinator may set aside for workers at once; without it 1.25 times the first
    limits of all, at most the budget."""
    rate: Annotated[Tokens | None, Field(examples=[2])] = None
    """And what more an hour; without it 1.25 times the planned pay of an hour."""
    confirmations: Annotated[Whole | None, Le(1000)] = None
    """Blocks, its own included, until a stake or a limit on the chain counts; without it as many as
    the market waits for."""
    vesting_window: Annotated[Count, Le(10_000)] = 5
    """Steps between earned and vested, in which an audit may undo pay."""
    commit_timeout: Span = timedelta(seconds=60)
    """From the close of a step to the last gradient's digest."""
    exchange_timeout: Span = timedelta(seconds=60)
    """From there to the last averaged chunk."""
    redo_after: Span = timedelta(seconds=1)
    """How long a lost peer's work waits for it before others do it."""
    lease_grace: Span = timedelta(seconds=60)
    """How long a lost peer keeps its place, and what the last validation may take."""

    @field_validator("publish_every")
    @classmethod
    def _with_a_checkpoint(cls, value: int, info: ValidationInfo) -> int:
        every = info.data.get("checkpoint_every", 1)
        if value % every:
            raise ValueError(f"make it a multiple of checkpoint_every, {every}: those are kept")
        return value

    @field_validator("stop_early")
    @classmethod
    def _by_validations(
        cls, value: StopEarlyFields | None, info: ValidationInfo
    ) -> StopEarlyFields | None:
        if value is not None and info.data.get("validate_every") is None:
            raise ValueError("it goes by validations: add `validate_every`, or leave it out")
        return value

    @field_validator("passes")
    @classmethod
    def _instead_of_steps(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is not None and info.data.get("steps") is not None:
            raise ValueError("steps says already how long the job trains: leave one of both out")
        return value

    @field_validator("adapter")
    @classmethod
    def _beside_a_model(
        cls, value: AdapterFields | None, info: ValidationInfo
    ) -> AdapterFields | None:
        model = info.data.get("model")
        if value is not None and isinstance(model, ModelFields) and not (model.folder or model.job):
            raise ValueError("it changes a model that exists: name its folder as `model`")
        return value

    @field_validator("stages", "layer_ends")
    @classmethod
    def _whole_if_local(cls, value: Any, info: ValidationInfo) -> Any:
        num_stages = len(value) if isinstance(value, list) else value or 1
        if num_stages > 1 and info.data.get("strategy") == "local":
            raise ValueError("local steps are of whole models: leave it out, or use every_step")
        return value

    @field_validator("local")
    @classmethod
    def _only_if_local(cls, value: LocalFields, info: ValidationInfo) -> LocalFields:
        if info.data.get("strategy") == "every_step":
            raise ValueError("it is of the strategy local: add `strategy: local`, or leave it out")
        return value

    @field_validator("objective", mode="before")
    @classmethod
    def _has_data_and_strategy(cls, value: Any, info: ValidationInfo) -> Any:
        if value not in get_args(Objective):
            raise ValueError(
                "it is pretrain (text) or sft (chats); no other is trained here, DPO neither"
            )
        if value == "sft" and info.data.get("strategy") == "local":
            raise ValueError("sft is trained by the strategy every_step: leave `strategy` out")
        if value == "sft" and info.data.get("data") == "builtin":
            raise ValueError("sft needs chats: name files of JSON lines as `data`")
        if value == "sft" and "field" in getattr(info.data.get("data"), "model_fields_set", ()):
            raise ValueError("sft reads whole chats: leave `field` of `data` out")
        return value

    @field_validator("gradient_codec")
    @classmethod
    def _seeded_if_local(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value in SEEDED and info.data.get("strategy") == "every_step":
            raise ValueError(
                "seeded codes are of the strategy local: use none, float16 or bfloat16, or add "
                "`strategy: local`"
            )
        return value

    @property
    def is_local(self) -> bool:
        """Whether peers take local steps."""
        return self.strategy == "local"

    @property
    def shard_codec(self) -> ShardCodecName:
        """What `gradient_codec` says, or its default."""
        return self.gradient_codec or ("seeded4" if self.is_local else "none")

    @property
    def documents(self) -> DataFields:
        """What `data` says, in its long form."""
        if isinstance(self.data, DataFields):
            return self.data
        return DataFields.model_validate({"from": self.data})

    @property
    def model_job(self) -> str | None:
        """The job, and perhaps @ and a step, whose model training starts from."""
        return None if isinstance(self.model, str) else self.model.job

    def with_model_folder(self, folder: Path) -> "JobFile":
        """The file with a folder in place of `model_job`."""
        assert isinstance(self.model, ModelFields)
        model = self.model.model_copy(update={"folder": str(folder), "job": None})
        return self.model_copy(update={"model": model})

    @property
    def model_folder(self) -> Path | None:
        """The folder of `transformers` that training starts from, if there is one."""
        folder = self.model if isinstance(self.model, str) else self.model.folder
        return None if folder is None else Path(folder)

    def train_config(
        self,
        *,
        started: ModelConfig | None = None,
        vocab_size: int | None = None,
        num_rows: int | None = None,
    ) -> TrainConfig:
        """The recipe with this file's changes.

        Args:
            started: The model that `model_folder` holds, where there is one.
            vocab_size: What the tokenizer needs, where there is one.
            num_rows: Training rows of the data, of which `passes` makes steps; until they are known
                the recipe's steps stand in.

        Raises:
            NotFound: no such recipe.
            Refused: values that do not fit each other.
        """
        make = RECIPES.get(self.recipe)
        if make is None:
            known = ", ".join(sorted(RECIPES))
            meant = nearest(self.recipe, RECIPES)
            raise NotFound(
                f"recipe {self.recipe!r:.80} is unknown{meant}; there are: {known}", known=known
            )
        base = make()
        data, local = self._data(base.data), self.local
        steps = self.steps or base.num_steps
        if self.passes is not None and num_rows is not None:
            steps = ceil(Fraction(str(self.passes)) * num_rows / data.rows_per_step)
        total = steps * local.inner_steps * local.segments if self.is_local else steps
        if total > MAX_STEPS and not self.is_local:
            raise Refused(f"passes: {steps} steps are more than {MAX_STEPS}: have fewer passes")
        if total > MAX_STEPS:
            raise Refused(
                f"steps: {steps} rounds of {local.inner_steps} x {local.segments} local steps are "
                f"more than {MAX_STEPS}: have fewer rounds, or shorter ones"
            )
        shortened = {"total_steps": total, "warmup_steps": min(base.optimizer.warmup_steps, total)}
        optimizer = asdict(base.optimizer) | shortened | _said(self.optimizer)
        model = _model(base.model, self.model, started, vocab_size)
        if self.adapter is not None:
            model = replace(model, adapter=self.adapter.spec())
        return TrainConfig(
            model=model,
            optimizer=OptimizerConfig(**optimizer),
            data=data,
            num_steps=steps,
        )

    def _data(self, base: DataConfig) -> DataConfig:
        """Rows and units; with local steps a unit has the rows of all of its inner steps."""
        rows = self.rows_per_unit or base.rows_per_unit
        units = self.units_per_step or base.units_per_step
        if self.is_local:
            local = self.local
            units = self.peers_per_stage * local.segments
            if self.units_per_step not in (None, units):
                raise Refused(
                    f"units_per_step: a round of local steps has {self.peers_per_stage} peers x "
                    f"{local.segments} segments, so {units} units: leave it out"
                )
            if rows * local.inner_steps > MAX_ROWS:
                raise Refused(
                    f"rows_per_unit: {local.inner_steps} local steps of {rows} rows are more than "
                    f"{MAX_ROWS} rows: lower one of both, and have more local.segments"
                )
            rows *= local.inner_steps
        return DataConfig(rows_per_unit=rows, units_per_step=units, seed=self.data_seed)


# ---------------------------------------------------------------------------------------- reading


def load_job_file(path: Path) -> JobFile:
    """Read and check a job file; the paths in it become absolute.

    Raises:
        NotFound: no such file.
        TooLarge: over 64 KiB.
        Malformed: not YAML, an unknown or missing field, a value out of range; data: `errors`.
        Refused: it cannot be read.
    """
    text = read_text(path)
    job = parse_job_file(text.fields, source=str(path), text=text)
    return _with_absolute_paths(job, path.resolve().parent)


def parse_job_file(
    raw: Mapping[str, Any], *, source: str = "job", text: Text | None = None
) -> JobFile:
    """Check the fields of a job file that is already parsed.

    Args:
        raw: The fields.
        source: What a refusal calls the file.
        text: The file, where there is one: a refusal then names lines.

    Raises:
        Malformed: unknown or missing fields, values out of range; data: `errors`, all of them.
    """
    try:
        return JobFile.model_validate(dict(raw))
    except ValidationError as error:
        raise complain(source, error, job_schema(), text) from error


@cache
def job_schema() -> dict[str, Any]:
    """JSON schema (draft 2020-12) of a job file, for editors and for whoever writes job files."""
    schema = JobFile.model_json_schema(schema_generator=_AsWritten)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "Tallystick job file",
    }


class _AsWritten(GenerateJsonSchema):
    """Shows defaults as a person writes them, and no titles that only repeat a field's name."""

    def encode_default(self, dft: Any) -> Any:
        """`60s`, not ISO 8601; of nested fields those that are said."""
        if isinstance(dft, timedelta):
            return f"{int(dft.total_seconds())}s"
        if isinstance(dft, Fields):
            return dft.model_dump(exclude_defaults=True)
        return super().encode_default(dft)

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Never."""
        return False


def _said(fields: Fields) -> dict[str, Any]:
    """What a person has written, without what was left out or left empty."""
    return fields.model_dump(exclude_none=True)


def _model(
    base: ModelConfig,
    said: str | ModelFields,
    started: ModelConfig | None,
    vocab_size: int | None,
) -> ModelConfig:
    changes = {} if isinstance(said, str) else _said(said)
    changes.pop("folder", None)
    assert "job" not in changes, "its model is downloaded before"
    if started is not None:
        if unknown := sorted(set(changes) - {"sequence_length"}):
            raise Malformed(
                f"model.{unknown[0]}: the folder decides it; only sequence_length may change"
            )
        base = started
    elif vocab_size is not None:
        base = replace(base, vocab_size=vocab_size)
    model = ModelConfig(**asdict(base) | changes)
    if vocab_size is not None and model.vocab_size < vocab_size:
        raise Refused(
            f"the tokenizer gives {vocab_size} different tokens, the model has vocab_size "
            f"{model.vocab_size}: use a tokenizer that fits the model"
        )
    return model


def _with_absolute_paths(job: JobFile, folder: Path) -> JobFile:
    def absolute(path: str) -> str:
        return path if "://" in path else str(folder / expanded(Path(path)))

    changed: dict[str, Any] = {}
    if job.data != "builtin":
        said = job.documents
        sources = [absolute(each) for each in said.sources]
        changed["data"] = said.model_copy(update={"sources": sources})
    if isinstance(job.model, str):
        changed["model"] = absolute(job.model)
    elif job.model.folder is not None:
        changed["model"] = job.model.model_copy(update={"folder": absolute(job.model.folder)})
    if job.tokenizer is not None:
        changed["tokenizer"] = absolute(job.tokenizer)
    return job.model_copy(update=changed)
