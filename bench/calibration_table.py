"""How large may an honest distance be? Makes the calibration table from honest distances.

A threshold is `FACTOR` x the 99.9 % quantile of what audits of honest work showed, and never below
1. what the same rule gives over all pairs of classes together: two makes of one class (another
   processor, another library) differ like two orders of summation, not like two equal machines;
2. `least`, for what was too rare to be seen: an element on the border between two codes;
rounded up to two digits. A sample is the largest distance of a whole audit, not of one tensor: an
audit makes dozens of comparisons and is a mismatch if one is above its threshold, so the quantile
must be that of their largest. Of fewer than 1000 audits the quantile is the largest seen.

Classes whose arithmetic adds in another dtype (`--apart`) keep their own, wider thresholds and do
not widen those of others.

Samples are JSON lines, `Sample.line()`; `bench/calibration.py` writes them from real
stages. `python -m bench.calibration_table --out FILE SAMPLES...` makes the table.
Units: distances in 1e-9.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias, cast, get_args

from contracts.terms.errors import Malformed
from contracts.terms.messages import CodecName
from verification.distances.thresholds import (
    MEASURES,
    SATURATED,
    Calibration,
    DType,
    PairThresholds,
    Thresholds,
    read_calibration,
)

FACTOR = 5
QUANTILE_OF_1000 = 999

ARITHMETIC: Mapping[DType, int] = {"float32": 100_000, "bfloat16": 4_000_000}
"""Least threshold whatever the codec: 840 units in the last place of fp32, one of bf16; deeper and
wider stages than were measured must pass too."""

CODEC: Mapping[CodecName, int] = {
    "none": 0,
    "float16": 1_000_000,
    "bfloat16": 8_000_000,
    "blockwise8": 15_000_000,
}
"""The largest step between neighbouring codes, in parts of the largest element: where one element
holds most of a tensor's norm, rounding it to the other neighbour may change so much."""

SIGNS: Mapping[DType, int] = {"float32": 1_000_000, "bfloat16": 10_000_000}
"""Least threshold for signs: parts of the magnitude of the largest entries, 0.1 % and 1 %."""

Pair: TypeAlias = tuple[DType, str, str]
Key: TypeAlias = str
"""Tensor kind and codec, as in `PairThresholds.limits`."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The farthest that one audit of honest work was off, for one kind under one codec."""

    dtype: DType
    classes: tuple[str, str]
    key: Key
    distances: Thresholds

    def line(self) -> str:
        """One line of a file of samples."""
        return json.dumps([self.dtype, *self.classes, self.key, *self.distances])


def read_sample(line: str) -> Sample:
    """The sample that `Sample.line` wrote.

    Raises:
        Malformed: it did not.
    """
    try:
        dtype, one, other, key, *distances = json.loads(line)
        a, b, c, d = (int(distance) for distance in distances)
    except (ValueError, TypeError) as error:
        raise Malformed(f"no sample: {line:.80}") from error
    if dtype not in get_args(DType) or not all(isinstance(text, str) for text in (one, other, key)):
        raise Malformed(f"no sample: {line:.80}")
    first, second = sorted((one, other))
    return Sample(dtype, (first, second), key, (a, b, c, d))


@dataclass
class Honest:
    """Honest distances, by pair of classes and by kind."""

    by_pair: dict[Pair, dict[Key, list[Thresholds]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )

    def add(self, sample: Sample) -> None:
        """Count one more audit."""
        self.by_pair[(sample.dtype, *sample.classes)][sample.key].append(sample.distances)

    def pooled(self, apart: Collection[str]) -> dict[tuple[DType, Key], list[Thresholds]]:
        """All pairs of an arithmetic together, without the classes `apart`."""
        pool: dict[tuple[DType, Key], list[Thresholds]] = defaultdict(list)
        for (dtype, one, other), by_key in self.by_pair.items():
            if one in apart or other in apart:
                continue
            for key, rows in by_key.items():
                pool[dtype, key] += rows
        return pool


def quantile(values: Iterable[int]) -> int:
    """The 99.9 % quantile by nearest rank: of fewer than 1000 values the largest."""
    ordered = sorted(values)
    return ordered[-(-len(ordered) * QUANTILE_OF_1000 // 1000) - 1]


def two_digits(value: int) -> int:
    """`value` rounded up to two significant digits."""
    unit: int = 10 ** max(len(str(value)) - 2, 0)
    return min(-(-value // unit) * unit, SATURATED)


def widest(rows: Sequence[Thresholds]) -> Thresholds:
    """`FACTOR` x the quantile of each measure."""
    a, b, c, d = (FACTOR * quantile(column) for column in zip(*rows, strict=True))
    return (a, b, c, d)


def least(dtype: DType, key: Key) -> Thresholds:
    """What a threshold never falls below, whatever the samples.

    Raises:
        Malformed: the key names no codec.
    """
    name = key.rpartition("/")[2]
    if name not in get_args(CodecName):
        raise Malformed(f"{key} names no codec")
    floor = max(ARITHMETIC[dtype], CODEC[cast(CodecName, name)])
    return (floor, floor, SIGNS[dtype], floor)


def make_calibration(
    honest: Honest, *, samples: str, comparisons: int, apart: Collection[str] = ()
) -> Calibration:
    """The table that these samples support.

    Args:
        honest: Distances of audits of honest work.
        samples: What was compared, for people who read the table.
        comparisons: Pairs of tensors that they stand for.
        apart: Classes that add in another dtype.
    """
    pooled = honest.pooled(apart)
    floors = {of: _larger(widest(rows), least(*of)) for of, rows in pooled.items()}
    pairs = tuple(
        PairThresholds(
            dtype=dtype,
            classes=(one, other),
            limits={
                key: _rounded(_larger(widest(rows), floors.get((dtype, key), least(dtype, key))))
                for key, rows in sorted(by_key.items())
            },
        )
        for (dtype, one, other), by_key in sorted(honest.by_pair.items())
    )
    return Calibration(samples=samples, comparisons=comparisons, measures=MEASURES, pairs=pairs)


def _larger(one: Thresholds, other: Thresholds) -> Thresholds:
    a, b, c, d = map(max, one, other)
    return (a, b, c, d)


def _rounded(limits: Thresholds) -> Thresholds:
    a, b, c, d = map(two_digits, limits)
    return (a, b, c, d)


def with_kinds(table: Calibration, other: Calibration) -> Calibration:
    """`table` with what only `other` holds of its pairs of classes; its own numbers stay."""
    limits = {(pair.dtype, *pair.classes): pair.limits for pair in other.pairs}
    pairs = tuple(
        PairThresholds(
            dtype=pair.dtype,
            classes=pair.classes,
            limits=dict(
                sorted((limits.get((pair.dtype, *pair.classes), {}) | pair.limits).items())
            ),
        )
        for pair in table.pairs
    )
    return Calibration(
        samples=f"{table.samples}; {other.samples}",
        comparisons=table.comparisons + other.comparisons,
        measures=MEASURES,
        pairs=pairs,
    )


def calibration_text(table: Calibration) -> str:
    """The table as JSON, a pair of classes in a line."""
    head = {name: value for name, value in table.value().items() if name != "pairs"}
    lines = ",\n".join(f"  {json.dumps(pair.value())}" for pair in table.pairs)
    opened = json.dumps(head, indent=1).removesuffix("\n}")
    return f'{opened},\n "pairs": [\n{lines}\n ]\n}}\n'


# ---------------------------------------------------------------------------------------- tool


def _read(paths: Iterable[Path]) -> Iterator[Sample]:
    for path in paths:
        with path.open(encoding="utf-8") as lines:
            yield from (read_sample(line) for line in lines if line.strip())


def main(arguments: Sequence[str] | None = None) -> None:
    """Make a table from files of samples."""
    parser = argparse.ArgumentParser(prog="python -m bench.calibration_table", description=__doc__)
    parser.add_argument("samples", nargs="+", type=Path, help="JSON lines of honest distances")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--about", default="honest stages", help="what was compared, in words")
    parser.add_argument("--comparisons", type=int, required=True, help="pairs of tensors compared")
    parser.add_argument("--apart", nargs="*", default=[], help="classes that add in another dtype")
    parser.add_argument("--beside", type=Path, help="JSON file of a table whose numbers stay")
    options = parser.parse_args(arguments)
    honest = Honest()
    for sample in _read(options.samples):
        honest.add(sample)
    table = make_calibration(
        honest, samples=options.about, comparisons=options.comparisons, apart=options.apart
    )
    if options.beside:
        table = with_kinds(read_calibration(options.beside.read_text(encoding="utf-8")), table)
    options.out.write_text(calibration_text(table), encoding="utf-8")
    print(f"{options.out}: {len(table.pairs)} pairs, digest {table.digest().hex()}")


if __name__ == "__main__":
    main()
