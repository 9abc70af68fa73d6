"""How far apart are honest replicas of local steps, and how far below a lie is that?

`python -m bench.calibration_local --samples FILE` lets replicas of small models take rounds of 100
inner steps as the strategy `local` does, from initial and from trained weights: on every real
device class of `calibration_devices` with one and with two threads, the smallest model also on
simulated ones. It compares all pairs as replays do: loss and trace of each step, and the difference
of the weights parameter by parameter. FILE gets the samples for
`python -m bench.calibration_table`, of rounds that end after 3, 10, 25, 50 and 100 of
the steps; printed are the largest distances of each.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from bench.calibration import adapted, pairs
from bench.calibration_devices import (
    GPU,
    KERNELS,
    Variant,
    capability,
    devices,
    load,
    sums_of,
)
from bench.calibration_table import Sample
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
from verification.distances.comparison import Comparison
from verification.distances.thresholds import Recipe

STEPS, TRAINED = 100, 300
MARKS = (3, 10, 25, 50, 100)
CPUS = tuple(name for name in KERNELS if name != GPU)
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
    for seed, rate in enumerate((0.001, 0.002, 0.004)):
        for before in (0, STEPS):
            config = _config(adapted(seed=seed), rate)
            yield Round(f"adapters, rate {rate}", config, before, is_small=True)


def _config(config: TrainConfig, rate: float) -> TrainConfig:
    optimizer = replace(
        config.optimizer, learning_rate=rate, total_steps=20 * STEPS, warmup_steps=STEPS
    )
    return replace(config, optimizer=optimizer)


@dataclass(frozen=True)
class Taken:
    """What a replica claims of a round."""

    steps: tuple[TracedStep, ...]
    differences: dict[int, Tensor]  # after so many steps


@dataclass(frozen=True)
class Base:
    """What a round starts from; `frozen` is what adapters are trained beside."""

    weights: dict[str, Tensor] | None = None
    frozen: dict[str, Tensor] | None = None


def stage_of(config: TrainConfig, base: Base) -> Stage:
    """The whole model."""
    whole, optimizer = whole_model(config.model), config.optimizer
    return Stage(config.model, whole, optimizer, weights=base.weights, frozen=base.frozen)


def take(of: Round, stage: Stage, num_steps: int, first: int) -> Taken:
    """A round of steps on the stage's weights."""
    rows, replica = rows_of(of.config), Replica(stage)
    replica.start(first)
    steps, differences = [], {}
    for step in range(first, first + num_steps):
        inputs = UnitInputs(rows_RT=rows_tensor(rows.load(ItemNumber(step))))
        seed = digest("local step", encode([of.name, step]))
        steps.append(replica.step({ItemNumber(step): inputs}, seed))
        if len(steps) in MARKS:
            differences[len(steps)] = replica.difference()
    return Taken(tuple(steps), differences)


def base_of(of: Round) -> Base:
    """The weights that a round starts from."""
    frozen = None
    if of.config.model.adapter is not None:
        plain = replace(of.config, model=replace(of.config.model, adapter=None))
        frozen = base_of(replace(of, config=plain, before=TRAINED)).weights
    stage = stage_of(of.config, Base(frozen=frozen))
    for first in range(0, of.before, STEPS):
        take(of, stage, STEPS, first)
    return Base({name: weight.clone() for name, weight in stage.weights().items()}, frozen)


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


def compare(of: Round, claimed: Taken, own: Taken, num_steps: int) -> Comparison:
    """The replay of a claim of the first steps."""
    found, views = Comparison(RECIPE), stage_of(of.config, Base()).layout.views
    for one, other in zip(claimed.steps[:num_steps], own.steps[:num_steps], strict=True):
        compare_steps(found, one, other)
    found.add_gradient(views(claimed.differences[num_steps]), views(own.differences[num_steps]))
    return found


@dataclass
class Measured:
    """What all comparisons showed."""

    samples: list[str]
    num_tensors: int = 0

    def add(self, of: Round, taken: Mapping[Variant, Taken]) -> None:
        """Compare all pairs of a round, as if it had ended at each of `MARKS`; print the most."""
        farthest: dict[tuple[str, int, str], int] = defaultdict(int)
        for one, other in pairs("float32"):
            if one not in taken or other not in taken:
                continue
            first, second = sorted((one.device, other.device))
            group = "real" if one.is_real and other.is_real else "simulated"
            for num_steps in taken[one].differences:
                found = compare(of, taken[one], taken[other], num_steps)
                self.num_tensors += found.num_tensors
                for kind, distances in found.farthest().items():
                    key = f"{kind}/{RECIPE.codec_of(kind)}"
                    self.samples.append(Sample("float32", (first, second), key, distances).line())
                    place = (group, num_steps, kind.partition(".")[0])
                    farthest[place] = max(farthest[place], distances[0])
        print(f"{of.name}, {of.before} steps before")
        for (group, num_steps, kind), distance in sorted(farthest.items()):
            print(f"    {group:9} {num_steps:3} {kind:10} {distance / 1e9:.1e}", flush=True)


def main() -> None:
    """Measure, write and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--samples", type=Path)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--rounds", type=int, default=sys.maxsize, help="so many of them")
    parser.add_argument("--named", default="", help="those whose name begins so")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--device", help=argparse.SUPPRESS)
    options = parsed(parser, minutes=60, steps=10, rounds=1)
    set_threads(1)
    if options.device:
        if capability() != options.device:
            raise SystemExit(f"this process computes as {capability()}, not as {options.device}")
        take_all(options.folder, variants([options.device]), options.steps)
        return
    found, simulated = Measured([]), set(devices("float32")).difference(KERNELS)
    with limit(options.minutes, "calibration_local"), tempfile.TemporaryDirectory() as name:
        of_name = [each for each in enumerate(rounds()) if each[1].name.startswith(options.named)]
        folder, taken = Path(name), of_name[: options.rounds]
        for number, of in taken:
            torch.save(base_of(of), folder / f"{number}.base")
        for device in CPUS:
            in_process(folder, device, options.steps)
        take_all(folder, variants(sorted(simulated)), options.steps)
        for number, of in taken:
            paths = {each: _path(folder, number, each) for each in variants(devices("float32"))}
            done = {each: load(path) for each, path in paths.items() if path.exists()}
            found.add(of, done)
    if options.samples:
        options.samples.write_text("".join(f"{line}\n" for line in found.samples))
    print(json.dumps({"comparisons": found.num_tensors} | about(steps=options.steps)))


def variants(names: Iterable[str]) -> list[Variant]:
    """Both of each class."""
    return [Variant(name, second) for name in names for second in (False, True)]


if __name__ == "__main__":
    main()
