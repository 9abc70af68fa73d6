"""Do the distances of an audit say match or mismatch? The calibration table decides. Pure.

Two honest devices never compute equal bytes; the table says how far apart they were seen to be, for
each pair of device classes, numeric recipe, tensor kind and measure (`comparison` has what the
measures mean), times a margin (`bench.calibration_table`). Everybody who reads a report derives its
verdict again: `decide` of the distances that it states. That they are true follows from a repeat of
the audit, never from here.

Invariants
- An audit is decided as one: a mismatch iff any of its distances is above its threshold.
- A report states every distance of its stage, each once: what is left out cannot match.
- A pair of classes that was never measured is refused, not guessed. Admission takes a class only
  when the table holds it against two others, so a second auditor can be on another class.
Units: distances and thresholds are integers in 1e-9. Source: docs/protocol.md 5 and 8.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Annotated, Literal, TypeAlias

from annotated_types import Ge, Le, Len

from contracts.terms.digest import digest
from contracts.terms.errors import Malformed, Refused
from contracts.terms.ids import Digest
from contracts.terms.messages import (
    CodecName,
    Exchanged,
    GradientCodecName,
    Record,
    class_name,
)

Outcome: TypeAlias = Literal["match", "mismatch"]
"""The verdicts of an audit that could compare."""

DType: TypeAlias = Literal["float32", "bfloat16"]

SATURATED = 2**53 - 1
"""A distance that cannot be said: not finite, or larger than this."""

MEASURES = ("relative_l2", "norm_ratio", "signs", "largest")
"""How far two tensors lie apart, in the order in which a table lists thresholds."""

OUTPUT, INPUT_GRADIENT, LOSS, TRACE = "y", "dx", "loss", "trace"

_DEVIATIONS = 12
_LAYER_ROLES = (
    "input_layernorm",
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "post_attention_layernorm",
    "gate_proj",
    "up_proj",
    "down_proj",
)
_ADAPTER_ROLES = ("lora_A", "lora_B")
_HEAD_NORMS = {"q_norm": "q_proj", "k_norm": "k_proj"}


@dataclass(frozen=True, slots=True)
class Recipe:
    """What rounds a job's numbers: the stages' arithmetic, and the codecs of what they send.

    A difference is compared as no codec has rounded it; `training.compression.nearest` says how.
    """

    boundary_codec: CodecName = "none"
    gradient_codec: GradientCodecName = "none"
    dtype: DType = "float32"
    exchanged: Exchanged = "gradient"

    def codec_of(self, kind: str) -> CodecName:
        """The codec that tensors of `kind` passed before they are compared."""
        if kind in (OUTPUT, INPUT_GRADIENT):
            return self.boundary_codec
        return self.gradient_codec if kind.startswith("gradient.") else "none"

    def kind_of(self, parameter: str) -> str:
        """The tensor kind of what is exchanged of a parameter: its role, whatever the layer.

        A bias, and a norm of heads, has the role of the matrix that makes what it is applied to.
        """
        role = parameter.removesuffix(".weight").removesuffix(".bias").rpartition(".")[2]
        return f"{self.exchanged}.{_HEAD_NORMS.get(role, role)}"


def stage_kinds(
    *,
    is_first: bool,
    is_last: bool,
    tied_head: bool = False,
    has_adapter: bool = False,
    exchanged: Exchanged = "gradient",
) -> tuple[str, ...]:
    """The tensor kinds that an audit of a stage compares, sorted."""
    roles = list(_ADAPTER_ROLES if has_adapter else _LAYER_ROLES)
    if not has_adapter and (is_first or (tied_head and is_last)):
        roles.append("embed_tokens")
    if not has_adapter and is_last:
        roles += ["norm"] if tied_head else ["norm", "lm_head"]
    ends = [] if is_first else [INPUT_GRADIENT]
    ends.append(LOSS if is_last else OUTPUT)
    if exchanged == "difference":
        ends.append(TRACE)
    return tuple(sorted([*ends, *(f"{exchanged}.{role}" for role in roles)]))


def projected_of(kinds: Iterable[str]) -> tuple[str, ...]:
    """Those that are, or tell of, the gradients of which a report states projections."""
    return tuple(kind for kind in kinds if kind == TRACE or kind.startswith("gradient."))


def distance_name(kind: str, measure: str) -> str:
    """What a distance is called; a report states them in the order of their names."""
    return f"{kind}/{measure}"


def projections_allowed(distance: int) -> int:
    """How far projections of two honest replays may lie apart, both in 1e-9.

    In 1e-9 of the norm; `training.strategies.projections` says why.

    Args:
        distance: The most that their gradients' relative L2 distance may be.
    """
    return 1000 * (-(-_DEVIATIONS * distance // 1000) + 1)


Name: TypeAlias = Annotated[str, Len(1, 256)]
Threshold: TypeAlias = Annotated[int, Ge(0), Le(SATURATED)]
Thresholds: TypeAlias = tuple[Threshold, Threshold, Threshold, Threshold]


class PairThresholds(Record):
    """Thresholds of two device classes (or of one twice), sorted, under one arithmetic.

    `limits`: by tensor kind and codec, `gradient.q_proj/none`; in the order of `MEASURES`.
    """

    dtype: DType
    classes: tuple[Name, Name]
    limits: dict[Name, Thresholds]


class Calibration(Record):
    """A calibration table. A changed one has another digest, and a changed form another kind."""

    kind: Literal["calibration.v1"] = "calibration.v1"
    samples: Name  # what was compared, for people
    comparisons: Annotated[int, Ge(0), Le(SATURATED)]  # honest pairs of tensors behind it
    measures: tuple[Name, ...]
    pairs: tuple[PairThresholds, ...]

    def digest(self) -> Digest:
        """What the JobSpec names: BLAKE3 of the canonical bytes."""
        return digest(self.kind, self.encoded())

    @property
    def classes(self) -> tuple[str, ...]:
        """Every device class that it names, sorted."""
        return tuple(sorted({name for pair in self.pairs for name in pair.classes}))

    def admits(self, device_class: str, dtype: DType = "float32") -> bool:
        """Whether `device_class` is held against itself and at least two other classes."""
        own = class_name(device_class)
        pairs = [pair.classes for pair in self.pairs if pair.dtype == dtype]
        held = {name for classes in pairs if own in classes for name in classes}
        return (own, own) in pairs and len(held) >= 3

    def holds(self, one: str, other: str, dtype: DType = "float32") -> bool:
        """Whether it says how far honest devices of these two classes are apart."""
        classes = _sorted(class_name(one), class_name(other))
        return any((each.dtype, each.classes) == (dtype, classes) for each in self.pairs)

    def thresholds(
        self, recipe: Recipe, kinds: Iterable[str], own_class: str, claimed_class: str
    ) -> dict[str, int]:
        """By distance name, the most that an honest distance may be.

        Args:
            recipe: What the JobSpec says of numbers.
            kinds: `stage_kinds` of the audited stage.
            own_class: Device class of the auditor, as its offer names it.
            claimed_class: Device class of whoever did the work; the order of the two is free.

        Raises:
            Refused: the table does not hold these classes, or this recipe; data: `classes`.
        """
        pair = self._pair(recipe.dtype, class_name(own_class), class_name(claimed_class))
        return {
            distance_name(kind, measure): threshold
            for kind in kinds
            for measure, threshold in zip(MEASURES, _limits(pair, recipe, kind), strict=True)
        }

    def _pair(self, dtype: DType, one: str, other: str) -> PairThresholds:
        classes = _sorted(one, other)
        for pair in self.pairs:
            if pair.dtype == dtype and pair.classes == classes:
                return pair
        named = " against ".join(classes)
        raise Refused(f"the calibration table does not hold {named} in {dtype}", classes=classes)


def _sorted(one: str, other: str) -> tuple[str, str]:
    return (one, other) if one <= other else (other, one)


def _limits(pair: PairThresholds, recipe: Recipe, kind: str) -> Thresholds:
    key = f"{kind}/{recipe.codec_of(kind)}"
    if key not in pair.limits:
        raise Refused(f"the calibration table does not hold {key}", classes=pair.classes)
    return pair.limits[key]


def decide(distances: Sequence[tuple[str, int]], thresholds: Mapping[str, int]) -> Outcome:
    """The verdict that the distances of a report stand for.

    Args:
        distances: 1e-9, with names as `distance_name` makes them.
        thresholds: `Calibration.thresholds` of the stage and the two device classes.

    Raises:
        Malformed: a distance is missing, unknown or stated twice.
    """
    stated = dict(distances)
    if len(stated) != len(distances) or stated.keys() != thresholds.keys():
        odd = sorted(stated.keys() ^ thresholds.keys()) or ["one stated twice"]
        raise Malformed(f"the distances are not those of the audited stage: {odd[0]}")
    is_above = any(distance > thresholds[name] for name, distance in stated.items())
    return "mismatch" if is_above else "match"


def read_calibration(text: str) -> Calibration:
    """The table that a JSON text spells.

    Raises:
        Malformed: no JSON, a field is off, measures are others than `MEASURES`, or a pair stands
            twice or is not sorted.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise Malformed(f"the calibration table is no JSON: {error}") from error
    table = Calibration.from_value(value)
    keys = [(pair.dtype, *pair.classes) for pair in table.pairs]
    if table.measures != MEASURES or len(set(keys)) != len(keys):
        raise Malformed("the calibration table has other measures, or a pair twice")
    if any(pair.classes != _sorted(*pair.classes) for pair in table.pairs):
        raise Malformed("a pair of the calibration table is not sorted")
    return table


@cache
def shipped_calibration() -> Calibration:
    """The table that comes with this version."""
    file = resources.files("verification.distances") / "calibration_v1.json"
    return read_calibration(file.read_text(encoding="utf-8"))


@cache
def shipped_digest() -> Digest:
    """Its digest, which takes ten milliseconds to make."""
    return shipped_calibration().digest()
