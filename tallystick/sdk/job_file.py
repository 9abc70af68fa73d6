"""What may a poster write in a job file? The one place that says it: names, units, bounds, words.

The file is data, never a program. Relative paths in it are relative to the file, and `~` is the
home folder. Amounts are in tokens, prices in tokens per PFLOP, spans as `90s`, `30m`, `2h` or `1d`,
memory as `8GiB`. What is left out takes the recipe's value or the default that the field shows
here. The JSON schema for editors (`job_schema`), what a refusal says (`job_text`) and the
comments of a starter file (`sample`) are all made from the fields below.

`model` changes fields of the recipe's model, or names a folder of `transformers` to train further;
of a folder's model only the length of its rows may be changed: `{folder: F, sequence_length: N}`.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

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
    WithJsonSchema,
)
from pydantic.json_schema import GenerateJsonSchema

from contracts.settings import expanded
from contracts.terms.amounts import BASE_UNITS_PER_TOKEN, UINT64_MAX, read_tokens
from contracts.terms.errors import Malformed, NotFound, Refused
from contracts.terms.ids import MAX_CHUNKS, MAX_PEERS, MAX_STAGES, MAX_UNITS
from contracts.terms.messages import CodecName, GradientCodecName
from tallystick.sdk.job_text import Text, complain, nearest, read_text
from training.config import (
    MAX_FFN_WIDTH,
    MAX_HEADS,
    MAX_LAYERS,
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

_SPAN = re.compile(r"([0-9]{1,12})\s*([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_SIZE = re.compile(r"([0-9]{1,9})\s*([KMGT])iB")
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


def _none(value: object) -> object:
    return "none" if value is None else value  # YAML reads a bare null as nothing


def _checking(value: object) -> object:
    if isinstance(value, bool):
        return "on" if value else "off"  # YAML 1.1 reads a bare on and off as true and false
    return value


def _kind_of_model(value: object) -> str:
    return "path" if isinstance(value, str) else "fields"


def _kind_of_data(value: object) -> str:
    return "path" if isinstance(value, str) else "paths"


# ------------------------------------------------------------------------------- kinds of fields

_AMOUNT = r"^[0-9]+(\.[0-9]{1,6})?$"
Whole = Annotated[int, Strict(), Ge(1)]
Count = Annotated[int, Strict(), Ge(0)]
Number = Annotated[float, Strict()]
Part = Annotated[Number, Ge(0), Le(1)]
Tokens = Annotated[
    int,
    BeforeValidator(read_tokens),
    WithJsonSchema(
        {
            "anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": _AMOUNT}],
            "x-unit": "tokens",
        }
    ),
]
Price = Annotated[
    int,
    BeforeValidator(price),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0},
                {"type": "string", "pattern": _AMOUNT},
            ],
            "x-unit": "tokens per PFLOP",
        }
    ),
]
Span = Annotated[
    timedelta,
    BeforeValidator(span),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": r"^\s*[0-9]{1,12}\s*[smhd]\s*$",
            "x-unit": "s, m, h or d, as written",
        }
    ),
]
Size = Annotated[
    int,
    BeforeValidator(size),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": r"^\s*[0-9]{1,9}\s*[KMGT]iB\s*$",
            "x-unit": "KiB, MiB, GiB or TiB, as written",
        }
    ),
]
Recipe = Annotated[str, WithJsonSchema({"type": "string", "enum": sorted(RECIPES)})]
Checking = Annotated[
    Literal["off", "on"],
    BeforeValidator(_checking),
    WithJsonSchema({"enum": ["off", "on", False, True]}),
]
BoundaryCodec = Annotated[CodecName, BeforeValidator(_none)]
GradientCodec = Annotated[GradientCodecName, BeforeValidator(_none)]


class Fields(BaseModel):
    """Fields that a person may write, each with its words."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelFields(Fields):
    """What of the recipe's model is different; of a folder's only its `sequence_length` may be."""

    folder: Annotated[
        str | None, Field(description="A folder that transformers saved: training goes on from it")
    ] = None
    vocab_size: Annotated[
        Whole | None, Le(MAX_VOCABULARY), Field(description="Different tokens that it knows")
    ] = None
    width: Annotated[
        Whole | None,
        Le(MAX_WIDTH),
        Field(description="Elements of a token inside the model; a multiple of num_heads"),
    ] = None
    num_layers: Annotated[Whole | None, Le(MAX_LAYERS), Field(description="Decoder layers")] = None
    num_heads: Annotated[
        Whole | None, Le(MAX_HEADS), Field(description="Attention heads of a layer")
    ] = None
    num_kv_heads: Annotated[
        Whole | None, Le(MAX_HEADS), Field(description="Heads for keys; num_heads is a multiple")
    ] = None
    ffn_width: Annotated[
        Whole | None, Le(MAX_FFN_WIDTH), Field(description="Width of the feed-forward part")
    ] = None
    sequence_length: Annotated[
        Whole | None, Le(MAX_SEQUENCE), Field(description="Tokens of a row")
    ] = None
    rope_theta: Annotated[
        int | None, Strict(), Gt(1), Field(description="Base of the rotary positions")
    ] = None
    norm_eps: Annotated[
        Number | None, Gt(0), Lt(1), Field(description="Added to the mean square in a norm")
    ] = None
    tied_head: Annotated[
        bool | None, Strict(), Field(description="Whether head and embedding are one matrix")
    ] = None
    init_seed: Annotated[
        Count | None, Le(MAX_SEED), Field(description="The first weights are drawn from it")
    ] = None


class OptimizerFields(Fields):
    """What of the recipe's AdamW is different."""

    learning_rate: Annotated[
        Number | None,
        Gt(0),
        Lt(10),
        Field(description="Peak of the learning rate", examples=[0.002]),
    ] = None
    beta1: Annotated[
        Number | None, Ge(0), Lt(1), Field(description="Decay of the first moment")
    ] = None
    beta2: Annotated[
        Number | None, Ge(0), Lt(1), Field(description="Decay of the second moment")
    ] = None
    epsilon: Annotated[
        Number | None, Gt(0), Lt(1), Field(description="Added to the root of the second moment")
    ] = None
    weight_decay: Annotated[
        Number | None, Ge(0), Lt(10), Field(description="Decoupled decay of matrices")
    ] = None
    clip_norm: Annotated[
        Number | None, Ge(0), Lt(1e6), Field(description="Largest norm of a gradient; 0: none")
    ] = None
    warmup_steps: Annotated[
        Count | None, Le(MAX_STEPS), Field(description="Steps until the rate is at its peak")
    ] = None
    schedule: Annotated[
        Schedule | None, Field(description="How the rate goes on after the warm-up")
    ] = None
    final_ratio: Annotated[
        Number | None, Ge(0), Le(1), Field(description="Rate that a cosine ends at, over the peak")
    ] = None


class JobFile(Fields):
    """A job as its poster writes it."""

    name: Annotated[
        str,
        Field(
            min_length=1, max_length=256, description="What the job is called", examples=["a job"]
        ),
    ]
    budget: Annotated[
        Tokens,
        Field(
            description="The most that the job may cost, its audits included; the rest comes back. "
            "About a quarter more than it is expected to cost, for providers that come and go",
            examples=[10],
        ),
    ]
    price_ceiling: Annotated[
        Price,
        Field(
            description="The most that 1e15 model FLOPs may cost; the market pays the lowest "
            "losing ask",
            examples=[2000],
        ),
    ]
    deadline: Annotated[
        Span,
        Field(
            description="How long after posting the job ends at the latest, done or not",
            examples=["1h"],
        ),
    ]
    recipe: Annotated[
        Recipe, Field(description="A complete configuration that the fields below change")
    ] = "tiny_llama"
    model: Annotated[
        Annotated[str, Tag("path")] | Annotated[ModelFields, Tag("fields")],
        Discriminator(_kind_of_model),
        Field(
            description="Fields of the recipe's model that differ, or a folder that transformers "
            "saved",
            examples=[{"width": 256, "num_layers": 4}, "path/to/llama"],
        ),
    ] = ModelFields()
    tokenizer: Annotated[
        str | None,
        Field(
            description="A tokenizer.json; without one the folder's own, else one token a byte",
            examples=["path/to/tokenizer.json"],
        ),
    ] = None
    optimizer: Annotated[
        OptimizerFields,
        Field(
            description="Fields of the recipe's optimizer that differ",
            examples=[{"learning_rate": 0.002}],
        ),
    ] = OptimizerFields()
    data: Annotated[
        Annotated[str, Tag("path")] | Annotated[list[str], Tag("paths")],
        Discriminator(_kind_of_data),
        Field(
            description="Text to train on: patterns of files, or `builtin` for Python's sources",
            examples=["builtin", "texts/*.txt"],
        ),
    ] = "builtin"
    data_seed: Annotated[
        Count, Le(MAX_SEED), Field(description="The order of the rows is drawn from it")
    ] = 0
    steps: Annotated[
        Whole | None, Le(MAX_STEPS), Field(description="Optimiser updates", examples=[60])
    ] = None
    units_per_step: Annotated[
        Whole | None,
        Le(MAX_UNITS),
        Field(description="Micro-batches of a step; the global batch is these times their rows"),
    ] = None
    rows_per_unit: Annotated[
        Whole | None, Le(65_536), Field(description="Rows that a peer computes at once")
    ] = None
    stages: Annotated[
        Whole,
        Le(MAX_STAGES),
        Field(description="Parts that the model is cut into, each on peers of its own"),
    ] = 1
    layer_ends: Annotated[
        list[Whole] | None,
        Field(
            description="After which layers the model is cut; without it the busiest stage gets "
            "the least work",
            examples=[[1, 3]],
        ),
    ] = None
    peer_memory: Annotated[
        Size | None,
        Field(
            description="What a peer has at most; a cut that needs more is refused",
            examples=["8GiB"],
        ),
    ] = None
    peers_per_stage: Annotated[
        Whole,
        Le(MAX_PEERS),
        Field(description="Providers that share the work of a stage, each with another owner"),
    ] = 1
    spares: Annotated[
        Count, Le(MAX_PEERS), Field(description="Providers more, where there are any")
    ] = 0
    chunks: Annotated[
        Whole | None,
        Le(MAX_CHUNKS),
        Field(description="Pieces that a gradient is summed in; without it two a peer"),
    ] = None
    boundary_codec: Annotated[
        BoundaryCodec, Field(description="How tensors between stages are packed; none is exact")
    ] = "none"
    gradient_codec: Annotated[
        GradientCodec, Field(description="How gradients inside a stage are packed; none is exact")
    ] = "none"
    checkpoint_every: Annotated[Whole, Field(description="Steps between two checkpoints")] = 10
    validate_every: Annotated[
        Whole | None,
        Field(description="Steps between two validations; without it one at the end"),
    ] = None
    checking: Annotated[
        Checking,
        Field(
            description="Whether some of the work is drawn by lot, done again by strangers and "
            "compared"
        ),
    ] = "off"
    audit_rate: Annotated[
        Number,
        Ge(0.01),
        Le(1),
        Field(description="Of the peer-steps, the part that is drawn at least (q's floor)"),
    ] = 0.05
    sum_audit_rate: Annotated[
        Part, Field(description="Of the averaged chunks, the part that is drawn")
    ] = 0.1
    repeat_rate: Annotated[
        Part, Field(description="Of the reports, the part that an outside auditor repeats")
    ] = 0.2
    audit_budget: Annotated[
        Tokens | None,
        Field(
            description="Of the budget, what audits may cost; without it a quarter, or what "
            "several steps drawn whole need",
            examples=[2.5],
        ),
    ] = None
    min_stake: Annotated[
        Tokens | None,
        Field(
            description="What each provider puts at stake and loses if it cheats; without it 0, or "
            "of a checked job what brings its draws to audit_rate, as far as twice the wanted "
            "providers can put it up",
            examples=[5],
        ),
    ] = None
    burst: Annotated[
        Tokens | None,
        Field(
            description="What the coordinator may set aside for workers at once; without it 1.25 "
            "times the first limits of all, at most the budget",
            examples=[5],
        ),
    ] = None
    rate: Annotated[
        Tokens | None,
        Field(
            description="And what more an hour; without it 1.25 times the planned pay of an hour",
            examples=[2],
        ),
    ] = None
    confirmations: Annotated[
        Whole | None,
        Le(1000),
        Field(
            description="Blocks, its own included, until a stake or a limit on the chain counts; "
            "without it as many as the market waits for"
        ),
    ] = None
    vesting_window: Annotated[
        Count,
        Le(10_000),
        Field(description="Steps between earned and vested, in which an audit may undo pay"),
    ] = 5
    commit_timeout: Annotated[
        Span, Field(description="From the close of a step to the last gradient's digest")
    ] = timedelta(seconds=60)
    exchange_timeout: Annotated[
        Span, Field(description="From there to the last averaged chunk")
    ] = timedelta(seconds=60)
    redo_after: Annotated[
        Span, Field(description="How long a lost peer's work waits for it before others do it")
    ] = timedelta(seconds=1)
    lease_grace: Annotated[Span, Field(description="How long a lost peer keeps its place")] = (
        timedelta(seconds=60)
    )

    @property
    def model_folder(self) -> Path | None:
        """The folder of `transformers` that training starts from, if there is one."""
        folder = self.model if isinstance(self.model, str) else self.model.folder
        return None if folder is None else Path(folder)

    def train_config(
        self, *, started: ModelConfig | None = None, vocab_size: int | None = None
    ) -> TrainConfig:
        """The recipe with this file's changes.

        Args:
            started: The model that `model_folder` holds, where there is one.
            vocab_size: What the tokenizer needs, where there is one.

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
        steps = self.steps or base.num_steps
        shortened = {"total_steps": steps, "warmup_steps": min(base.optimizer.warmup_steps, steps)}
        optimizer = asdict(base.optimizer) | shortened | _said(self.optimizer)
        return TrainConfig(
            model=_model(base.model, self.model, started, vocab_size),
            optimizer=OptimizerConfig(**optimizer),
            data=DataConfig(
                rows_per_unit=self.rows_per_unit or base.data.rows_per_unit,
                units_per_step=self.units_per_step or base.data.units_per_step,
                seed=self.data_seed,
            ),
            num_steps=steps,
        )


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
            return _said(dft)
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
        return str(folder / expanded(Path(path)))

    changed: dict[str, Any] = {}
    if job.data != "builtin":
        patterns = [job.data] if isinstance(job.data, str) else job.data
        changed["data"] = [absolute(pattern) for pattern in patterns]
    if isinstance(job.model, str):
        changed["model"] = absolute(job.model)
    elif job.model.folder is not None:
        changed["model"] = job.model.model_copy(update={"folder": absolute(job.model.folder)})
    if job.tokenizer is not None:
        changed["tokenizer"] = absolute(job.tokenizer)
    return job.model_copy(update=changed)
