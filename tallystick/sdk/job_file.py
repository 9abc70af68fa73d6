"""From a YAML file to a job: what a poster writes, checked, and the JobSpec that he signs.

The file is data, never a program. Relative paths in it are relative to the file. Amounts are in
tokens, prices in tokens per PFLOP, spans as `90s`, `30m`, `2h` or `1d`. What is left out takes
the recipe's value or the default that the field shows here.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from annotated_types import Ge, Le
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from contracts.terms.amounts import (
    BASE_UNITS_PER_TOKEN,
    UINT64_MAX,
    UINT96_MAX,
    BaseUnits,
    PricePerPflop,
    pay_for,
)
from contracts.terms.errors import Malformed, NotFound, Refused
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

_SPAN = re.compile(r"(\d+)\s*([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def tokens(value: object) -> int:
    """Base units of an amount that a person wrote in tokens, e.g. `12.5`.

    Raises:
        ValueError: no number, negative, or finer than a base unit.
    """
    if isinstance(value, bool):  # YAML's yes and no
        raise ValueError("an amount in tokens is a number, e.g. 12.5")
    try:
        scaled = Decimal(str(value)) * BASE_UNITS_PER_TOKEN
    except InvalidOperation as error:
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
    if not match or int(match[1]) == 0:
        raise ValueError("a span is a number with s, m, h or d, e.g. 90s or 2h")
    return timedelta(seconds=int(match[1]) * _SECONDS[match[2]])


def _checking(value: object) -> object:
    return "off" if value is False else value  # YAML reads a bare off as false


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
    data_seed: Annotated[int, Ge(0), Le(2**53 - 1)] = 0
    steps: Annotated[int, Ge(1)] | None = None
    units_per_step: Annotated[int, Ge(1)] | None = None
    rows_per_unit: Annotated[int, Ge(1)] | None = None
    checkpoint_every: Annotated[int, Ge(1)] = 10
    validate_every: Annotated[int, Ge(1)] | None = None
    checking: Annotated[Literal["off"], BeforeValidator(_checking)] = "off"
    min_stake: Tokens = 0
    epoch_cap: Tokens | None = None
    vesting_window: Annotated[int, Ge(0)] = 5
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
        Malformed: not YAML, an unknown or missing field, a value out of range.
    """
    try:
        raw = yaml.safe_load(path.read_text())
    except FileNotFoundError as error:
        raise NotFound(f"no job file {path}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"cannot read {path}: {error}") from error
    except yaml.YAMLError as error:
        raise Malformed(f"{path}: not YAML: {error}") from error
    if not isinstance(raw, dict):
        raise Malformed(f"{path}: a job file is a mapping of fields, e.g. `name: my job`")
    job = parse_job_file(raw, source=str(path))
    return job.model_copy(update={"data": _absolute(job.data, path.resolve().parent)})


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
        raise Malformed(f"{what}: unknown field {unknown[0]!r}; there are: {', '.join(base)}")
    try:
        return cls(**base | changes)
    except TypeError as error:
        raise Malformed(f"{what}: {error}") from error


def _shortened(base: OptimizerConfig, steps: int) -> dict[str, int]:
    return {"total_steps": steps, "warmup_steps": min(base.warmup_steps, steps)}


def _absolute(data: str | list[str], folder: Path) -> str | list[str]:
    if data == "builtin":
        return data
    return [str(folder / pattern) for pattern in ([data] if isinstance(data, str) else data)]


def _millis(value: timedelta) -> int:
    return int(value.total_seconds() * 1000)
