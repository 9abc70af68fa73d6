"""From a YAML file to a job: what a poster writes, checked, and the JobSpec that he signs.

The file is data, never a program: at most 64 KiB, no anchors, no aliases, no field twice. Relative
paths in it are relative to the file. Amounts are in tokens, prices in tokens per PFLOP, spans as
`90s`, `30m`, `2h` or `1d`. What is left out takes the recipe's value or the default that the field
shows here.
"""

import decimal
import re
from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from decimal import Decimal
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
    PricePerPflop,
    pay_for,
)
from contracts.terms.errors import Malformed, NotFound, Refused, TooLarge
from contracts.terms.ids import Address, Digest
from contracts.terms.messages import BatchSpec, DataSpec, JobSpec, RulesSpec
from contracts.terms.moments import UnixSeconds
from training.config import (
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    TrainConfig,
    even_slices,
    model_spec,
    optimizer_spec,
)
from training.flops import unit_flops
from training.memory import stage_memory
from training.recipes import RECIPES

MAX_FILE_BYTES = 64 * 2**10
MAX_DEPTH = 8
MAX_SPAN_DAYS = 36_500

_SPAN = re.compile(r"([0-9]{1,12})\s*([smhd])")
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
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


def _checking(value: object) -> object:
    return "off" if value is False else value  # YAML reads a bare off as false


Whole = Annotated[int, Strict(), Ge(1)]
Tokens = Annotated[int, BeforeValidator(tokens)]
Price = Annotated[int, BeforeValidator(tokens), Ge(1), Le(UINT64_MAX)]
Span = Annotated[timedelta, BeforeValidator(span)]


class JobFile(BaseModel):
    """A job as its poster writes it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(min_length=1, max_length=256)]
    budget: Tokens
    price_ceiling: Price
    deadline: Span
    recipe: str = "tiny_llama"
    model: dict[str, Any] = {}
    optimizer: dict[str, Any] = {}
    data: str | list[str] = "builtin"
    data_seed: Annotated[int, Strict(), Ge(0), Le(2**53 - 1)] = 0
    steps: Whole | None = None
    units_per_step: Whole | None = None
    rows_per_unit: Whole | None = None
    checkpoint_every: Whole = 10
    validate_every: Whole | None = None
    checking: Annotated[Literal["off"], BeforeValidator(_checking)] = "off"
    min_stake: Tokens = 0
    epoch_cap: Tokens | None = None
    vesting_window: Annotated[int, Strict(), Ge(0)] = 5
    commit_timeout: Span = timedelta(seconds=60)
    exchange_timeout: Span = timedelta(seconds=60)
    lease_grace: Span = timedelta(seconds=60)

    def train_config(self) -> TrainConfig:
        """The recipe with this file's changes.

        Raises:
            NotFound: no such recipe.
            Refused: values that do not fit each other.
        """
        make = RECIPES.get(self.recipe)
        if make is None:
            known = ", ".join(sorted(RECIPES))
            raise NotFound(f"recipe {self.recipe!r} is unknown; there are: {known}")
        base = make()
        steps = self.steps or base.num_steps
        return TrainConfig(
            model=_changed(ModelConfig, "model", asdict(base.model), self.model),
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
    """Read and check a job file; `data` becomes absolute.

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
    return job.model_copy(update={"data": _absolute(job.data, path.resolve().parent)})


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


def build_spec(
    job: JobFile,
    *,
    poster: Address,
    coordinator: Address,
    nonce: int,
    manifest: Digest,
    now: UnixSeconds,
) -> JobSpec:
    """What the poster signs.

    Raises:
        Malformed: a value does not fit its message field.
        Refused: sizes that do not fit each other.
    """
    config = job.train_config()
    (stage,) = even_slices(config.model, 1)
    rows = config.data.rows_per_unit
    memory = stage_memory(config.model, stage, rows).total()
    try:
        return JobSpec(
            poster=poster,
            coordinator=coordinator,
            nonce=nonce,
            name=job.name,
            budget=BaseUnits(job.budget),
            epoch_cap=BaseUnits(job.budget if job.epoch_cap is None else job.epoch_cap),
            price_ceiling=PricePerPflop(job.price_ceiling),
            deadline=UnixSeconds(now + int(job.deadline.total_seconds())),
            min_stake=BaseUnits(job.min_stake),
            memory_bytes=memory,
            unit_flops=(unit_flops(config.model, stage, rows),),
            model=model_spec(config.model),
            optimizer=optimizer_spec(config.optimizer),
            data=DataSpec(manifest=manifest, seed=config.data.seed),
            batch=BatchSpec(
                steps=config.num_steps,
                units_per_step=config.data.units_per_step,
                rows_per_unit=rows,
                stages=1,
                peers_per_stage=1,
                chunks=1,
                checkpoint_every=job.checkpoint_every,
                validate_every=job.validate_every or config.num_steps,
            ),
            rules=RulesSpec(
                checking=job.checking,
                vesting_window=job.vesting_window,
                commit_timeout=_millis(job.commit_timeout),
                exchange_timeout=_millis(job.exchange_timeout),
                lease_grace=_millis(job.lease_grace),
            ),
        )
    except ValidationError as error:
        detail = error.errors(include_url=False, include_input=False)[0]
        raise Malformed(f"job: {'.'.join(map(str, detail['loc']))}: {detail['msg']}") from error


def cost_at(spec: JobSpec, price: PricePerPflop) -> BaseUnits:
    """What the whole job costs at one price, before any rounding down per account."""
    per_step = sum(spec.unit_flops) * spec.batch.units_per_step
    return pay_for(type(spec.unit_flops[0])(per_step * spec.batch.steps), price)


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


def _absolute(data: str | list[str], folder: Path) -> str | list[str]:
    if data == "builtin":
        return data
    return [str(folder / pattern) for pattern in ([data] if isinstance(data, str) else data)]


def _millis(value: timedelta) -> int:
    return int(value.total_seconds() * 1000)
