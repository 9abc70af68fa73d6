"""A starter job file for a model of a size and a budget, with a comment on every field there is.

The model is a Llama with about as many layers as 64 goes into its width. It is trained for as many
steps as the budget pays at the price ceiling, and for no more than twenty tokens a parameter
(Hoffmann et al. 2022). Steps are made smaller, and pay waits longer before it vests, until there
are `ENOUGH_STEPS` and checking costs at most `CHECKING_AIM` of the compute, as far as it goes.
With local steps a step is a round of them.
Comments are the descriptions of the fields in `job_file`, so they are written down once.
"""

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from typing import Any, NamedTuple

from contracts.terms.amounts import (
    BaseUnits,
    Flops,
    PricePerPflop,
    format_tokens,
    in_tokens,
    pay_for,
)
from contracts.terms.errors import Refused, Unaffordable
from contracts.terms.ids import MAX_STAGES, Address, Digest
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixSeconds
from tallystick.sdk.checking import CheckingPlan, checking_phrases, checking_plan, later_share
from tallystick.sdk.job_file import USUAL_CLASS, JobFile, Strategy, job_schema, parse_job_file
from tallystick.sdk.job_schema import SCHEMA_PATH
from tallystick.sdk.job_spec import DataNames, build_spec
from training.config import BYTE_VOCABULARY, MAX_STEPS, ModelConfig, whole_model
from training.memory import num_parameters
from training.planner import plan_layers

DEFAULT_PRICE = PricePerPflop(2000 * 10**6)
TOKENS_PER_PARAMETER = 20
MOST_PARAMETERS = 10**12
_HEAD_WIDTH = 64
ENOUGH_STEPS, LEAST_STEPS = 50, 10
CHECKING_AIM = Fraction(8, 100)
"""Extra compute by audits after the newcomers' phase, as a part of the job's own."""
_ROWS_PER_UNIT = 4
_BATCHES: Mapping[Strategy, Sequence[dict[str, Any]]] = {
    "every_step": [
        {"units_per_step": units, "rows_per_unit": rows}
        for units, rows in ((8, _ROWS_PER_UNIT), (8, 2), (8, 1), (6, 1), (3, 1), (2, 1), (1, 1))
    ],
    "local": [
        {"local": {"inner_steps": steps}, "rows_per_unit": rows}
        for steps, rows in ((50, _ROWS_PER_UNIT), (50, 2), (50, 1), (20, 1), (10, 1))
    ],
}
"""Fields that make a step large or small, from the largest step to the smallest."""
_WINDOWS = (5, 8, 12, 16, 20, 30, 40, 60, 80)
"""Steps between earned and vested, from the default on; the newcomers' phase is as long."""


@dataclass(frozen=True)
class Wanted:
    """What a starter file is made for; amounts in base units, memory in bytes."""

    parameters: int
    budget: BaseUnits
    price_ceiling: PricePerPflop = DEFAULT_PRICE
    deadline: timedelta = timedelta(hours=1)
    peer_memory: int | None = None
    checking: bool = True
    strategy: Strategy = "every_step"


class Sample(NamedTuple):
    """A starter file, and what its checking would cost at the price ceiling."""

    text: str
    checking: CheckingPlan | None


def sample(wanted: Wanted) -> Sample:
    """A job file, which loads as it is, for a size of the model, a budget and so on.

    Raises:
        Refused: no such model, or none that fits into the memory.
        Unaffordable: the budget pays less than `LEAST_STEPS`; data: `budget_would_fit`.
    """
    model = model_of_size(wanted.parameters)
    fields = _fitted(_fields(wanted, model, _stages(model, wanted)), wanted)
    spec = _spec(parse_job_file(fields, source="sample"))
    checking = checking_plan(spec, spec.price_ceiling)
    return Sample(_text(fields, checking), checking)


def model_of_size(parameters: int) -> ModelConfig:
    """The decoder whose number of parameters is nearest to `parameters`.

    Raises:
        Refused: below one parameter or above 1e12.
    """
    if not 1 <= parameters <= MOST_PARAMETERS:
        raise Refused(f"a model has 1 to {MOST_PARAMETERS} parameters, not {parameters}")
    widths = (32, 64, *range(128, 40_000, 128))
    larger = bisect_left(widths, parameters, key=lambda width: _size(_decoder(width)))
    near = (
        _decoder(width, num_layers)
        for width in widths[max(0, larger - 1) : larger + 1]
        for num_layers in range(max(1, width // 128), width // 32 + 1)
    )
    return min(near, key=lambda each: abs(_size(each) - parameters))


def _size(config: ModelConfig) -> int:
    return num_parameters(config, whole_model(config))


def _decoder(width: int, num_layers: int = 0) -> ModelConfig:
    heads = max(2, width // _HEAD_WIDTH)
    return ModelConfig(
        vocab_size=BYTE_VOCABULARY,
        width=width,
        num_layers=num_layers or max(1, width // _HEAD_WIDTH),
        num_heads=heads,
        num_kv_heads=heads // 2,
        ffn_width=-(-8 * width // 3 // _HEAD_WIDTH) * _HEAD_WIDTH,
        sequence_length=128 if width < 512 else 512,
    )


def _stages(model: ModelConfig, wanted: Wanted) -> int:
    """The fewest stages whose largest fits into the memory; local steps have one."""
    if wanted.strategy == "local":
        return 1
    most = min(model.num_layers, MAX_STAGES)
    for stages in range(1, most):
        try:
            plan_layers(
                model,
                stages,
                _ROWS_PER_UNIT,
                memory_bytes=wanted.peer_memory,
                audits=wanted.checking,
            )
            return stages
        except Refused:
            continue
    return most


def _fields(wanted: Wanted, model: ModelConfig, stages: int) -> dict[str, Any]:
    shape = ("width", "num_layers", "num_heads", "num_kv_heads", "ffn_width", "sequence_length")
    fields: dict[str, Any] = {
        "name": "my first job",
        "budget": _number(wanted.budget),
        "price_ceiling": _number(wanted.price_ceiling),
        "deadline": f"{max(60, int(wanted.deadline.total_seconds()))}s",
        "data": "builtin",
        "model": {name: getattr(model, name) for name in shape},
        "strategy": wanted.strategy,
        "steps": 1,
        **_BATCHES[wanted.strategy][0],
        "stages": stages,
        "peers_per_stage": 3 if wanted.checking or wanted.strategy == "local" else 1,
        "checking": "on" if wanted.checking else "off",
    }
    if wanted.checking and wanted.strategy == "local":
        fields["device_class"] = USUAL_CLASS
    if wanted.peer_memory is not None:
        fields["peer_memory"] = f"{wanted.peer_memory // 1024}KiB"
    return fields


def _number(base_units: int) -> str:
    return format_tokens(BaseUnits(base_units)).rstrip("0").rstrip(".")


def _fitted(fields: dict[str, Any], wanted: Wanted) -> dict[str, Any]:
    """The fields with the largest step that leaves enough steps and cheap checking."""
    for batch in _BATCHES[wanted.strategy]:
        config = parse_job_file(fields | batch, source="sample").train_config()
        if config.data.units_per_step < fields["peers_per_stage"]:
            break
        tokens = TOKENS_PER_PARAMETER * wanted.parameters
        wished = min(MAX_STEPS, -(-tokens // config.tokens_per_step))
        fields = fields | batch
        steps = _most_steps(fields, wished)
        if steps < min(ENOUGH_STEPS, wished):
            continue
        fields |= {"steps": steps}
        vesting, later = _vesting(fields)
        if later <= CHECKING_AIM:
            return vesting
    return _smallest(fields, wanted, min(LEAST_STEPS, wished))


def _smallest(fields: dict[str, Any], wanted: Wanted, least: int) -> dict[str, Any]:
    """The fields, whose steps are as small as they can be, with as many as are paid for.

    Raises:
        Unaffordable: fewer than `least`.
    """
    steps = _most_steps(fields, ENOUGH_STEPS)
    if steps < least:
        missing = _missing(parse_job_file(fields, source="sample"), least)
        enough = BaseUnits(wanted.budget + missing)
        raise Unaffordable(
            f"{in_tokens(wanted.budget)} tokens pay {steps} steps of this model at "
            f"{in_tokens(wanted.price_ceiling)} tokens per PFLOP, too few to train anything; "
            f"{in_tokens(enough)} would pay {least}: raise the budget or train a smaller model",
            budget_would_fit=str(enough),
        )
    return _vesting(fields | {"steps": steps})[0]


def _vesting(fields: dict[str, Any]) -> tuple[dict[str, Any], Fraction]:
    """The shortest window with which checking is cheap enough, and the share that it then costs.

    At most half of the steps are newcomers' ones. If no window will do, the default stays.
    """
    shares: list[tuple[dict[str, Any], Fraction]] = []
    for window in _WINDOWS:
        tried = fields if window == _WINDOWS[0] else fields | {"vesting_window": window}
        spec = _spec(parse_job_file(tried, source="sample"))
        if 2 * window > fields["steps"] and shares:
            break
        shares.append((tried, later_share(spec, spec.price_ceiling)))
        if shares[-1][1] <= CHECKING_AIM:
            return shares[-1]
    return shares[0]


def _most_steps(fields: dict[str, Any], most: int) -> int:
    """The most steps up to `most` that the budget pays, audits included."""
    job = parse_job_file(fields, source="sample")
    return bisect_left(range(1, most + 1), True, key=lambda steps: _missing(job, steps) > 0)


def _missing(job: JobFile, steps: int) -> int:
    """Base units that `steps` steps and their audits cost beyond the budget."""
    spec = _spec(job.model_copy(update={"steps": steps}))
    flops = Flops(steps * spec.batch.units_per_step * sum(spec.item_flops))
    audits = 0 if spec.rules.audit is None else spec.rules.audit.budget
    return pay_for(flops, spec.price_ceiling) + audits - spec.budget


def _spec(job: JobFile) -> JobSpec:
    nobody = Address(bytes(20))
    return build_spec(
        job,
        job.train_config(),
        poster=nobody,
        coordinator=nobody,
        salt=0,
        data=DataNames(Digest(bytes(32))),
        now=UnixSeconds(0),
    )


# ----------------------------------------------------------------------------------------- as text


def _text(fields: dict[str, Any], checking: CheckingPlan | None) -> str:
    known = job_schema()["properties"]
    lines = [
        f"# yaml-language-server: $schema={SCHEMA_PATH.as_uri()}",
        "# What is set is what you asked for; what begins with # has the value that it shows, or",
        "# none. First `tallystick job plan` on this file, then `tallystick job submit`.",
    ]
    if checking is not None:
        lines += ["#", "# What checking would cost at the price ceiling:"]
        lines += [f"#   {each}" for each in checking_phrases(checking)]
        lines += [f"#   less with {each}" for each in checking.cheaper]
    for name, value in fields.items():
        lines += ["", *_comment(known[name]), f"{name}: {_yaml(value)}"]
    lines += ["", "# ------------------------------------------------ what else may be said"]
    for name, field in known.items():
        if name not in fields:
            lines += ["", *_comment(field), f"# {name}: {_yaml(_shown(field))}"]
    return "\n".join(lines) + "\n"


def _comment(field: dict[str, Any]) -> list[str]:
    unit = field.get("x-unit")
    return [f"# {field['description']}" + (f" ({unit})" if unit else "") + "."]


def _shown(field: dict[str, Any]) -> Any:
    """The default, or an example where that is nothing."""
    default = field.get("default")
    return default if default not in (None, {}) else next(iter(field.get("examples", ())), None)


def _yaml(value: Any) -> str:
    """A value on one line; JSON is YAML, and words and numbers go without quotes."""
    if value is None:
        return ""
    return str(value) if isinstance(value, str) else json.dumps(value)
