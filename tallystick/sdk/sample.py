"""A starter job file for a model of a size and a budget, with a comment on every field there is.

The model is a Llama with about as many layers as 64 goes into its width. It is trained for as many
steps as the budget pays at the price ceiling, and for no more than twenty tokens a parameter
(Hoffmann et al. 2022). Comments are the descriptions of the fields in `job_file`, so they are
written down once.
"""

import json
from bisect import bisect_left
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from contracts.terms.amounts import BaseUnits, Flops, PricePerPflop, format_tokens, pay_for
from contracts.terms.errors import Refused, Unaffordable
from contracts.terms.ids import MAX_STAGES, Address, Digest
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixSeconds
from tallystick.sdk.job_file import JobFile, job_schema, parse_job_file
from tallystick.sdk.job_schema import SCHEMA_PATH
from tallystick.sdk.job_spec import build_spec
from training.config import BYTE_VOCABULARY, MAX_STEPS, ModelConfig, whole_model
from training.memory import num_parameters
from training.planner import plan_layers

DEFAULT_PRICE = PricePerPflop(2000 * 10**6)
TOKENS_PER_PARAMETER = 20
MOST_PARAMETERS = 10**12
_HEAD_WIDTH = 64
_ROWS_PER_UNIT, _UNITS_PER_STEP = 4, 8


@dataclass(frozen=True)
class Wanted:
    """What a starter file is made for; amounts in base units, memory in bytes."""

    parameters: int
    budget: BaseUnits
    price_ceiling: PricePerPflop = DEFAULT_PRICE
    deadline: timedelta = timedelta(hours=1)
    peer_memory: int | None = None
    checking: bool = True


def sample(wanted: Wanted, *, schema: str = "") -> str:
    """The text of a job file, which loads as it is.

    Args:
        wanted: Size of the model, budget and so on.
        schema: What editors are pointed at; empty: the file that came with this program.

    Raises:
        Refused: no such model, or none that fits into the memory.
        Unaffordable: the budget does not pay a single step; data: `budget_would_fit`.
    """
    model = model_of_size(wanted.parameters)
    fields = _fields(wanted, model, _stages(model, wanted))
    fields["steps"] = _steps(fields, wanted, model)
    return _text(fields, schema or SCHEMA_PATH.as_uri())


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
    """The fewest stages whose largest fits into the memory."""
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
        "steps": 1,
        "units_per_step": _UNITS_PER_STEP,
        "rows_per_unit": _ROWS_PER_UNIT,
        "stages": stages,
        "peers_per_stage": 3 if wanted.checking else 1,
        "checking": "on" if wanted.checking else "off",
    }
    if wanted.peer_memory is not None:
        fields["peer_memory"] = f"{wanted.peer_memory // 1024}KiB"
    return fields


def _number(base_units: int) -> str:
    return format_tokens(BaseUnits(base_units)).rstrip("0").rstrip(".")


def _steps(fields: dict[str, Any], wanted: Wanted, model: ModelConfig) -> int:
    job = parse_job_file(fields, source="sample")
    tokens_per_step = _UNITS_PER_STEP * _ROWS_PER_UNIT * model.sequence_length
    wished = -(-TOKENS_PER_PARAMETER * wanted.parameters // tokens_per_step)
    most = min(MAX_STEPS, max(1, wished))
    found = bisect_left(range(1, most + 1), True, key=lambda steps: _missing(job, steps) > 0)
    if found == 0:
        least = BaseUnits(wanted.budget + _missing(job, 1))
        raise Unaffordable(
            f"{format_tokens(wanted.budget)} tokens do not pay one step of this model at "
            f"{format_tokens(wanted.price_ceiling)} tokens per PFLOP; "
            f"{format_tokens(least)} would: raise the budget or train a smaller model",
            budget_would_fit=str(least),
        )
    return found


def _missing(job: JobFile, steps: int) -> int:
    """Base units that `steps` steps and their audits cost beyond the budget."""
    spec = _spec(job.model_copy(update={"steps": steps}))
    flops = Flops(steps * spec.batch.units_per_step * sum(spec.unit_flops))
    audits = 0 if spec.rules.audit is None else spec.rules.audit.budget
    return pay_for(flops, spec.price_ceiling) + audits - spec.budget


def _spec(job: JobFile) -> JobSpec:
    nobody = Address(bytes(20))
    return build_spec(
        job,
        job.train_config(),
        poster=nobody,
        coordinator=nobody,
        nonce=0,
        manifest=Digest(bytes(32)),
        now=UnixSeconds(0),
    )


# ----------------------------------------------------------------------------------------- as text


def _text(fields: dict[str, Any], schema: str) -> str:
    known = job_schema()["properties"]
    lines = [
        f"# yaml-language-server: $schema={schema}",
        "# What is set is what you asked for; what begins with # has the value that it shows, or",
        "# none. First `tallystick job plan` on this file, then `tallystick job submit`.",
    ]
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
