"""How far apart are honest replicas of local steps, and how far below a lie is that?

`python -m bench.calibration_local --samples FILE` lets replicas of small models take rounds of 100
inner steps as the strategy `local` does, from initial and from trained weights: on every real
device class of `calibration_devices` with one and with two threads, the smallest model also on
simulated ones. It compares all pairs as replays do: loss and trace of each step, and the difference
of the weights parameter by parameter. FILE gets the samples for
`python -m verification.distances.calibration`; printed are the largest distances of traces by step,
and of differences at the end.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from bench.calibration import pairs
from bench.calibration_devices import (
    KERNELS,
    Variant,
    capability,
    devices,
    load,
    sums_of,
)
from bench.local_steps import Run, config_of, rows_of
from bench.measuring import ROOT, about, limit, parsed, parser_of
from contracts.terms.digest import digest
from contracts.terms.encoding import encode
from contracts.terms.items import ItemNumber
from training.config import TrainConfig, whole_model
from training.recipes import micro
from training.stages.exact import set_threads
from training.stages.stage import Stage, UnitInputs, rows_tensor
from training.strategies.local.inner import Replica
from training.strategies.local.replay import compare_steps
from training.strategies.local.trace import TracedStep
from verification.distances.calibration import Sample
from verification.distances.comparison import Comparison
from verification.distances.thresholds import LOSS, TRACE, Recipe

STEPS, TRAINED = 100, 300
MARKS = (10, 25, 50, 100)
RECIPE = Recipe(exchanged="difference")


@dataclass(frozen=True)
class Round:
    """One round of one replica."""

    name: str
    config: TrainConfig
    before: int  # inner steps that its base was trained for
    is_small: bool = False


def rounds() -> Iterator[Round]:
    """What is calibrated on: 0.03, 0.18 and 0.86 million parameters, rates from 0.001 to 0.004."""
    for seed, rate in enumerate((0.001, 0.002, 0.004)):
        config = _config(micro(seed=seed), rate)
        for before in (0, TRAINED):
            yield Round(f"0.03 M, rate {rate}", config, before, is_small=True)
        config = config_of(Run("local", seed=seed + 10))
        model = replace(
            config.model, width=64, num_layers=3, ffn_width=172, tied_head=rate == 0.002
        )
        yield Round(f"0.18 M, rate {rate}", _config(replace(config, model=model), rate), TRAINED)
    config = config_of(Run("local", seed=20))
    yield Round("0.86 M, rate 0.002", _config(config, 0.002), TRAINED)


def _config(config: TrainConfig, rate: float) -> TrainConfig:
    optimizer = replace(
        config.optimizer, learning_rate=rate, total_steps=20 * STEPS, warmup_steps=STEPS
    )
    return replace(config, optimizer=optimizer)


@dataclass(frozen=True)
class Taken:
    """What a replica claims of a round."""

    steps: tuple[TracedStep, ...]
    difference: Tensor


def stage_of(config: TrainConfig, weights: dict[str, Tensor] | None = None) -> Stage:
    """The whole model."""
    return Stage(config.model, whole_model(config.model), config.optimizer, weights=weights)


def take(of: Round, stage: Stage, num_steps: int, first: int) -> Taken:
    """A round of steps on the stage's weights."""
    rows, replica = rows_of(of.config), Replica(stage, "restart")
    replica.start(first)
    steps = []
    for step in range(first, first + num_steps):
        inputs = UnitInputs(rows_RT=rows_tensor(rows.load(ItemNumber(step))))
        seed = digest("local step", encode([of.name, step]))
        steps.append(replica.step({ItemNumber(step): inputs}, seed))
    return Taken(tuple(steps), replica.difference().clone())


def base_of(of: Round) -> dict[str, Tensor]:
    """The weights that a round starts from."""
    stage = stage_of(of.config)
    for first in range(0, of.before, STEPS):
        take(of, stage, STEPS, first)
    return {name: weight.clone() for name, weight in stage.weights().items()}


# ------------------------------------------------------------------------------------- processes


def take_all(folder: Path, variants: Sequence[Variant], num_steps: int) -> None:
    """Take the rounds whose bases lie in a folder, and leave what came of them there."""
    for number, of in enumerate(rounds()):
        if not (folder / f"{number}.base").exists():
            continue
        for variant in variants:
            if not (variant.is_real or of.is_small):
                continue
            torch.set_num_threads(2 if variant.is_real and variant.second else 1)
            stage = stage_of(of.config, load(folder / f"{number}.base"))
            with sums_of(variant):
                taken = take(of, stage, num_steps, of.before)
            torch.save(taken, _path(folder, number, variant))


def _path(folder: Path, number: int, variant: Variant) -> Path:
    return folder / f"{number}.{variant.device.replace('/', '-')}.{variant.second}"


def in_process(folder: Path, device: str, num_steps: int) -> None:
    """`take_all` of one real class."""
    words = [f"--steps={num_steps}", f"--folder={folder}", f"--device={device}"]
    subprocess.run(
        [sys.executable, "-m", "bench.calibration_local", *words],
        check=True, cwd=ROOT, env=os.environ | dict(KERNELS[device]) | {"GOMP_SPINCOUNT": "0"},
    )  # fmt: skip


# ------------------------------------------------------------------------------------- comparing


def compare(of: Round, claimed: Taken, own: Taken) -> Comparison:
    """The replay of one claim."""
    found, views = Comparison(RECIPE), stage_of(of.config).layout.views
    for one, other in zip(claimed.steps, own.steps, strict=True):
        compare_steps(found, one, other)
    found.add_gradient(views(claimed.difference), views(own.difference))
    return found


def trace_by_step(claimed: Taken, own: Taken) -> list[int]:
    """Relative L2 of the projections, the largest up to each of `MARKS`, 1e-9."""
    found, largest = Comparison(RECIPE), []
    for number, (one, other) in enumerate(zip(claimed.steps, own.steps, strict=True), start=1):
        compare_steps(found, one, other)
        if number in MARKS:
            largest.append(found.farthest()[TRACE][0])
    return largest


def main() -> None:
    """Measure, write and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--samples", type=Path)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--rounds", type=int, default=sys.maxsize, help="so many of them")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--device", help=argparse.SUPPRESS)
    options = parsed(parser, minutes=60, steps=10, rounds=2)
    set_threads(1)
    if options.device:
        if capability() != options.device:
            raise SystemExit(f"this process computes as {capability()}, not as {options.device}")
        variants = (Variant(options.device), Variant(options.device, second=True))
        take_all(options.folder, variants, options.steps)
        return
    lines: list[str] = []
    counted = 0
    with limit(options.minutes, "calibration_local"), tempfile.TemporaryDirectory() as name:
        folder, taken = Path(name), list(rounds())[: options.rounds]
        for number, of in enumerate(taken):
            torch.save(base_of(of), folder / f"{number}.base")
        for device in KERNELS:
            in_process(folder, device, options.steps)
        simulated = [each for each in devices("float32") if each not in KERNELS]
        take_all(
            folder,
            [Variant(each, second) for each in simulated for second in (False, True)],
            options.steps,
        )
        for number, of in enumerate(taken):
            by_step: dict[str, list[list[int]]] = {"real": [], "simulated": []}
            ends: dict[str, int] = {}
            for one, other in pairs("float32"):
                if not (of.is_small or (one.is_real and other.is_real)):
                    continue
                claimed, own = (load(_path(folder, number, each)) for each in (one, other))
                found = compare(of, claimed, own)
                counted += found.num_tensors
                classes = tuple(sorted((one.device, other.device)))
                for kind, distances in found.farthest().items():
                    key = f"{kind}/{RECIPE.codec_of(kind)}"
                    lines.append(Sample("float32", classes, key, distances).line())
                    ends[kind] = max(ends.get(kind, 0), distances[0])
                group = "real" if one.is_real and other.is_real else "simulated"
                by_step[group].append(trace_by_step(claimed, own))
            print(_told(of, by_step, ends), flush=True)
    if options.samples:
        options.samples.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    print(json.dumps({"comparisons": counted} | about(steps=options.steps)))


def _told(of: Round, by_step: Mapping[str, list[list[int]]], ends: Mapping[str, int]) -> str:
    def most(rows: list[list[int]]) -> dict[int, str]:
        columns = zip(*rows, strict=True)
        return {mark: f"{max(each) / 1e9:.1e}" for mark, each in zip(MARKS, columns, strict=False)}

    worst = {group: most(rows) for group, rows in by_step.items()}
    differences = {kind: end for kind, end in ends.items() if kind not in (LOSS, TRACE)}
    farthest = max(differences, key=lambda kind: differences[kind])
    return (
        f"{of.name}, {of.before} before: trace {worst}, loss {ends[LOSS] / 1e9:.1e}, "
        f"{farthest} {differences[farthest] / 1e9:.1e}"
    )


if __name__ == "__main__":
    main()
