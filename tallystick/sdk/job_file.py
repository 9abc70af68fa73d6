"""From a YAML file to a job: what a poster writes, checked, and the JobSpec that he signs.

The file is data, never a program: at most 64 KiB, no anchors, no aliases, no field twice. Relative
paths in it are relative to the file. Amounts are in tokens, prices in tokens per PFLOP, spans as
`90s`, `30m`, `2h` or `1d`, memory as `8GiB`. What is left out takes the recipe's value or the
default that the field shows here.

`model` changes fields of the recipe's model, or names a folder of `transformers` to train further;
of a folder's model only the length of its rows may be changed: `{folder: F, sequence_length: N}`.
"""

import decimal
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from annotated_types import Ge, Le
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict, ValidationError

from contracts.terms.amounts import (
    BASE_UNITS_PER_TOKEN,
    UINT64_MAX,
    UINT96_MAX,
    BaseUnits,
    Flops,
    PricePerPflop,
)
from contracts.terms.errors import Malformed, NotFound, Refused, TooLarge
from contracts.terms.ids import MAX_CHUNKS, MAX_STAGES, ZERO_DIGEST, Address, Digest
from contracts.terms.messages import (
    MILLION,
    AuditSpec,
    BatchSpec,
    CodecName,
    DataSpec,
    GradientCodecName,
    JobSpec,
    RulesSpec,
)
from contracts.terms.moments import UnixSeconds
from training.config import (
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    StageSlice,
    TrainConfig,
    model_spec,
    optimizer_spec,
    shares_embedding,
    slices_of,
)
from training.flops import unit_flops
from training.memory import FP32, num_parameters, peer_memory
from training.planner import plan_layers
from training.recipes import RECIPES
from training.transport.calls import MAX_CHUNK_BYTES
from verification.economics import least_budget, least_stake_among_equals, terms_of
from verification.thresholds import shipped_calibration

MAX_FILE_BYTES = 64 * 2**10
MAX_DEPTH = 8
MAX_SPAN_DAYS = 36_500

_SPAN = re.compile(r"([0-9]{1,12})\s*([smhd])")
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_SIZE = re.compile(r"([0-9]{1,9})\s*([KMGT])iB")
_BYTES = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# Wide enough for every amount; a digit that does not fit is refused, never rounded.
_EXACT = decimal.Context(
    prec=64, traps=[decimal.InvalidOperation, decimal.Overflow, decimal.Inexact]
)


def tokens(value: object) -> int:
    """Base units of an amount that a person wrote in tokens, e.g. `12.5`.

    Raises:
        ValueError: no number, negative, or finer than a base unit.
    """
    if isinstance(value, bool):  # YAML's yes and no
        raise ValueError("an amount in tokens is a number, e.g. 12.5")
    try:
        scaled = _EXACT.multiply(Decimal(str(value)), BASE_UNITS_PER_TOKEN)
    except (ArithmeticError, ValueError) as error:
        raise ValueError("an amount in tokens is a number, e.g. 12.5") from error
    if not scaled.is_finite() or scaled < 0 or scaled > UINT96_MAX or scaled != int(scaled):
        raise ValueError("an amount in tokens is 0 or more, with at most six decimals")
    return int(scaled)


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
        return "on" if value else "off"  # YAML reads a bare on and off as true and false
    return value


Whole = Annotated[int, Strict(), Ge(1)]
Tokens = Annotated[int, BeforeValidator(tokens)]
Price = Annotated[int, BeforeValidator(tokens), Ge(1), Le(UINT64_MAX)]
Span = Annotated[timedelta, BeforeValidator(span)]
Size = Annotated[int, BeforeValidator(size)]


class JobFile(BaseModel):
    """A job as its poster writes it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(min_length=1, max_length=256)]
    budget: Tokens
    price_ceiling: Price
    deadline: Span
    recipe: str = "tiny_llama"
    model: str | dict[str, Any] = {}
    tokenizer: str | None = None
    optimizer: dict[str, Any] = {}
    data: str | list[str] = "builtin"
    data_seed: Annotated[int, Strict(), Ge(0), Le(2**53 - 1)] = 0
    steps: Whole | None = None
    units_per_step: Whole | None = None
    rows_per_unit: Whole | None = None
    stages: Annotated[Whole, Le(MAX_STAGES)] = 1
    layer_ends: list[Whole] | None = None
    peer_memory: Size | None = None
    peers_per_stage: Whole = 1
    spares: Annotated[int, Strict(), Ge(0)] = 0
    chunks: Annotated[Whole, Le(MAX_CHUNKS)] | None = None
    boundary_codec: Annotated[CodecName, BeforeValidator(_none)] = "none"
    gradient_codec: Annotated[GradientCodecName, BeforeValidator(_none)] = "none"
    checkpoint_every: Whole = 10
    validate_every: Whole | None = None
    checking: Annotated[Literal["off", "on"], BeforeValidator(_checking)] = "off"
    audit_rate: Annotated[float, Field(ge=0.01, le=1)] = 0.05
    sum_audit_rate: Annotated[float, Field(ge=0, le=1)] = 0.1
    repeat_rate: Annotated[float, Field(ge=0, le=1)] = 0.2
    audit_budget: Tokens | None = None
    min_stake: Tokens | None = None
    epoch_cap: Tokens | None = None
    vesting_window: Annotated[int, Strict(), Ge(0)] = 5
    commit_timeout: Span = timedelta(seconds=60)
    exchange_timeout: Span = timedelta(seconds=60)
    redo_after: Span = timedelta(seconds=1)
    lease_grace: Span = timedelta(seconds=60)

    @property
    def model_folder(self) -> Path | None:
        """The folder of `transformers` that training starts from, if there is one."""
        if isinstance(self.model, str):
            return Path(self.model)
        return Path(str(self.model["folder"])) if "folder" in self.model else None

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
            raise NotFound(f"recipe {self.recipe!r} is unknown; there are: {known}")
        base = make()
        model = _model(base.model, self.model, started, vocab_size)
        steps = self.steps or base.num_steps
        return TrainConfig(
            model=model,
            optimizer=_changed(
                OptimizerConfig,
                "optimizer",
                asdict(base.optimizer) | _shortened(base.optimizer, steps),
                self.optimizer,
            ),
            data=DataConfig(
                rows_per_unit=self.rows_per_unit or base.data.rows_per_unit,
                units_per_step=self.units_per_step or base.data.units_per_step,
                seed=self.data_seed,
            ),
            num_steps=steps,
        )


def load_job_file(path: Path) -> JobFile:
    """Read and check a job file; the paths in it become absolute.

    Raises:
        NotFound: no such file.
        TooLarge: over 64 KiB.
        Malformed: not YAML, an unknown or missing field, a value out of range.
        Refused: it cannot be read.
    """
    try:
        raw = yaml.load(_read(path), _Plain)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date or number that is none
        raise Malformed(f"{path}: not YAML: {error}") from error
    if not isinstance(raw, dict):
        raise Malformed(f"{path}: a job file is a mapping of fields, e.g. `name: my job`")
    job = parse_job_file(raw, source=str(path))
    return _with_absolute_paths(job, path.resolve().parent)


def _read(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():  # a device may never end
            raise Refused(f"cannot read {path}: it is no file")
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError as error:
        raise NotFound(f"no job file {path}") from error
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror}") from error
    if len(text) > MAX_FILE_BYTES:
        raise TooLarge(
            f"{path} is larger than any job file ({MAX_FILE_BYTES} bytes): name data, do not "
            "paste it",
            limit=MAX_FILE_BYTES,
        )
    return text


class _Plain(yaml.SafeLoader):
    """YAML without what makes a small file large or deep, or says two things at once."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Refuse aliases, each of which could stand for everything before it, and deep nests."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("a job file has no aliases (*name): write the value out")
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise yaml.YAMLError(f"nested deeper than {MAX_DEPTH}")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse a field that is there twice."""
        names: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in names:
                raise yaml.YAMLError(f"{key.value!r:.80} is there twice")
            names.add(str(key.value))
        return super().construct_mapping(node, deep)


def parse_job_file(raw: Mapping[str, Any], *, source: str = "job") -> JobFile:
    """Check the fields of a job file that is already parsed.

    Raises:
        Malformed: an unknown or missing field, a value out of range.
    """
    try:
        return JobFile.model_validate(dict(raw))
    except ValidationError as error:
        detail = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in detail["loc"])
        if detail["type"] == "extra_forbidden":
            known = ", ".join(JobFile.model_fields)
            raise Malformed(f"{source}: unknown field {field!r:.80}; there are: {known}") from error
        raise Malformed(f"{source}: {field}: {detail['msg']}") from error


def cut(job: JobFile, config: TrainConfig) -> tuple[int, ...]:
    """`layer_ends`: as the file says, else as planned.

    Raises:
        Refused: `layer_ends` that are not as many as `stages`, or a cut that cannot be.
    """
    rows, audits = config.data.rows_per_unit, job.checking == "on"
    if job.layer_ends is None:
        return plan_layers(
            config.model, job.stages, rows, memory_bytes=job.peer_memory, audits=audits
        )
    ends = tuple(job.layer_ends)
    if "stages" in job.model_fields_set and job.stages != len(ends):
        raise Refused(f"layer_ends has {len(ends)} ends, stages is {job.stages}: one end a stage")
    largest = _memory(job, config, slices_of(config.model, ends))
    if job.peer_memory is not None and largest > job.peer_memory:
        raise Refused(f"layer_ends: a peer needs {largest} bytes, peer_memory is {job.peer_memory}")
    return ends


def _memory(job: JobFile, config: TrainConfig, stages: Sequence[StageSlice]) -> int:
    """Bytes that a peer of the largest stage needs; with its audits, where there are any."""
    rows, audits = config.data.rows_per_unit, job.checking == "on"
    return max(peer_memory(config.model, each, rows, audits=audits) for each in stages)


def build_spec(
    job: JobFile,
    config: TrainConfig,
    *,
    poster: Address,
    coordinator: Address,
    nonce: int,
    manifest: Digest,
    now: UnixSeconds,
    tokenizer: Digest = ZERO_DIGEST,
    weights: Digest = ZERO_DIGEST,
) -> JobSpec:
    """What the poster signs.

    Raises:
        Malformed: a value does not fit its message field.
        Refused: sizes that do not fit each other.
    """
    ends = cut(job, config)
    stages = slices_of(config.model, ends)
    rows = config.data.rows_per_unit
    flops = tuple(unit_flops(config.model, stage, rows) for stage in stages)
    try:
        audit = _audit(job, config, flops)
        return JobSpec(
            poster=poster,
            coordinator=coordinator,
            nonce=nonce,
            name=job.name,
            budget=BaseUnits(job.budget),
            epoch_cap=BaseUnits(job.budget if job.epoch_cap is None else job.epoch_cap),
            price_ceiling=PricePerPflop(job.price_ceiling),
            deadline=UnixSeconds(now + int(job.deadline.total_seconds())),
            min_stake=_min_stake(job, config, flops, audit),
            memory_bytes=_memory(job, config, stages),
            unit_flops=flops,
            model=model_spec(config.model, weights=weights),
            optimizer=optimizer_spec(config.optimizer),
            data=DataSpec(manifest=manifest, seed=config.data.seed, tokenizer=tokenizer),
            batch=BatchSpec(
                steps=config.num_steps,
                units_per_step=config.data.units_per_step,
                rows_per_unit=rows,
                stages=len(ends),
                layer_ends=ends,
                peers_per_stage=job.peers_per_stage,
                spares=job.spares,
                chunks=job.chunks or _chunks(config.model, stages, job.peers_per_stage),
                checkpoint_every=job.checkpoint_every,
                validate_every=job.validate_every or config.num_steps,
            ),
            rules=RulesSpec(
                audit=audit,
                boundary_codec=job.boundary_codec,
                gradient_codec=job.gradient_codec,
                vesting_window=job.vesting_window,
                commit_timeout=_millis(job.commit_timeout),
                exchange_timeout=_millis(job.exchange_timeout),
                redo_after=_millis(job.redo_after),
                lease_grace=_millis(job.lease_grace),
            ),
        )
    except ValidationError as error:
        detail = error.errors(include_url=False, include_input=False)[0]
        raise Malformed(f"job: {'.'.join(map(str, detail['loc']))}: {detail['msg']}") from error


AUDIT_MARGIN = Fraction(5, 4)  # m of PROTOCOL section 7
AUDIT_DETECTION = Fraction(99, 100)  # of a falsified peer-step by one replay, at the least
AUDIT_DEADLINE = 4  # D, steps
AUDIT_BUDGET = Fraction(1, 4)  # of the job's budget, unless its file or `least_budget` says more


def _audit(job: JobFile, config: TrainConfig, flops: Sequence[Flops]) -> AuditSpec | None:
    """How the job is checked; None if it is not."""
    if job.checking == "off":
        return None
    price, said = PricePerPflop(job.price_ceiling), job.audit_budget
    audit = AuditSpec(
        floor=round(job.audit_rate * MILLION),
        sums=round(job.sum_audit_rate * MILLION),
        repeats=round(job.repeat_rate * MILLION),
        margin=int(AUDIT_MARGIN * MILLION),
        detection=int(AUDIT_DETECTION * MILLION),
        deadline=AUDIT_DEADLINE,
        thresholds=shipped_calibration().digest(),
        price=price,
        budget=BaseUnits(int(job.budget * AUDIT_BUDGET) if said is None else said),
    )
    if said is not None:
        return audit
    least = least_budget(
        terms_of(audit, job.vesting_window),
        step_flops=sum(flops) * config.data.units_per_step,
        steps=config.num_steps,
        dearest=price,
    )
    return audit.model_copy(update={"budget": max(audit.budget, least)})


def _min_stake(
    job: JobFile, config: TrainConfig, flops: Sequence[Flops], audit: AuditSpec | None
) -> BaseUnits:
    """As the file says, else what covers a peer's equal part of a step from the first one on."""
    if job.min_stake is not None:
        return BaseUnits(job.min_stake)
    if audit is None:
        return BaseUnits(0)
    least = least_stake_among_equals(
        terms_of(audit, job.vesting_window),
        unit_flops=flops,
        units=-(-config.data.units_per_step // job.peers_per_stage),
        price=PricePerPflop(job.price_ceiling),
        owners=job.peers_per_stage,
    )
    return BaseUnits(0) if least is None else least  # no stake would do: the market says why


def _chunks(model: ModelConfig, stages: tuple[StageSlice, ...], peers_per_stage: int) -> int:
    """Two for each peer, so that a fast one sums more of them; none beyond what a call carries."""
    shared = model.vocab_size * model.width if model.tied_head and len(stages) > 1 else 0
    own = [
        num_parameters(model, stage) - (shared if shares_embedding(model, stage) else 0)
        for stage in stages
    ]
    sizes = [*own, shared] if shared else own
    needed = -(-FP32 * max(sizes) // MAX_CHUNK_BYTES)
    most = MAX_CHUNKS // 2 if shared else MAX_CHUNKS  # a GradCommit then has twice as many parts
    return min(max(2 * peers_per_stage, needed), most, min(sizes))


def _model(
    base: ModelConfig,
    changes: str | dict[str, Any],
    started: ModelConfig | None,
    vocab_size: int | None,
) -> ModelConfig:
    changes = {} if isinstance(changes, str) else dict(changes)
    if "folder" in changes and not isinstance(changes.pop("folder"), str):
        raise Malformed("model.folder: a path is wanted")
    if started is not None:
        if unknown := sorted(set(changes) - {"sequence_length"}):
            raise Malformed(
                f"model.{unknown[0]:.80}: the folder decides it; only sequence_length may change"
            )
        base = started
    elif vocab_size is not None:
        base = replace(base, vocab_size=vocab_size)
    model: ModelConfig = _changed(ModelConfig, "model", asdict(base), changes)
    if vocab_size is not None and model.vocab_size < vocab_size:
        raise Refused(
            f"the tokenizer gives {vocab_size} different tokens, the model has vocab_size "
            f"{model.vocab_size}: use a tokenizer that fits the model"
        )
    return model


def _changed(cls: type[Any], what: str, base: dict[str, Any], changes: dict[str, Any]) -> Any:
    unknown = sorted(set(changes) - set(base))
    if unknown:
        raise Malformed(f"{what}: unknown field {unknown[0]!r:.80}; there are: {', '.join(base)}")
    for name, value in changes.items():
        wanted = type(base[name])
        if type(value) is not wanted and not (wanted is float and type(value) is int):
            hint = "; YAML reads 1e-3 as text: write 1.0e-3" if wanted is float else ""
            raise Malformed(f"{what}.{name}: {_KINDS[wanted]} is wanted, not {value!r:.40}{hint}")
    return cls(**base | changes)


def _shortened(base: OptimizerConfig, steps: int) -> dict[str, int]:
    return {"total_steps": steps, "warmup_steps": min(base.warmup_steps, steps)}


def _with_absolute_paths(job: JobFile, folder: Path) -> JobFile:
    changed: dict[str, Any] = {}
    if job.data != "builtin":
        patterns = [job.data] if isinstance(job.data, str) else job.data
        changed["data"] = [str(folder / pattern) for pattern in patterns]
    if isinstance(job.model, str):
        changed["model"] = str(folder / job.model)
    elif isinstance(job.model.get("folder"), str):
        changed["model"] = job.model | {"folder": str(folder / job.model["folder"])}
    if job.tokenizer is not None:
        changed["tokenizer"] = str(folder / job.tokenizer)
    return job.model_copy(update=changed)


def _millis(value: timedelta) -> int:
    return int(value.total_seconds() * 1000)
