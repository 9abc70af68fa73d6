"""How often does one replay of a claim of local steps accuse an honest replica, or see a lie?

`python -m bench.local_detection [--segments N] [--claims N] [--only CLASS] [--quick]` lets replicas
of three models (0.14, 0.31 and 0.71 million parameters) make claims of 20 segments of 5 inner
steps, for each CPU class (AVX512, AVX2, without vectors) in one process, on one thread as in a
checked job. Another process replays each claim, and the verdict is that of the shipped thresholds
of the class with itself.

    honest       claims until there are N segments of them (10,000)
    two threads  honest too, but on two threads, which a checked job does not allow
    skipped, stale rows, half rows, bf16
                 lies in a share of the 100 steps, N claims (20) for each share and class
    last         as skipped, in the last step alone
    scaled       the difference times 1.01; copied: that of the claim before

Printed: claims, those whose replay is a mismatch, and the exact 95 % interval of that rate
(Clopper and Pearson). Bases are trained for 200 steps; every claim has rows of its own.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bench.calibration_devices import GPU, KERNELS, capability
from bench.local_steps import Run, config_of, rows_of
from bench.measuring import (
    ROOT,
    about,
    clopper_pearson,
    limit,
    markdown,
    parsed,
    parser_of,
    tell,
)
from contracts.terms.digest import digest
from contracts.terms.encoding import encode
from contracts.terms.items import ItemNumber
from tallystick.gym.local_steps import SLIGHTLY, LyingReplica
from training.config import TrainConfig, whole_model
from training.data.loading import UnitRows
from training.stages.exact import set_threads
from training.stages.stage import Stage, UnitInputs, rows_tensor
from training.strategies.local.inner import Replica
from training.strategies.local.replay import compare_steps
from training.strategies.local.trace import TracedStep
from verification.distances.comparison import Comparison
from verification.distances.thresholds import Recipe, decide, shipped_calibration, stage_kinds

SEGMENTS, STEPS_OF_SEGMENT = 20, 5
STEPS, TRAINED = SEGMENTS * STEPS_OF_SEGMENT, 200
WIDTHS = (56, 88, 136)
STEP_LIES, SHARES = ("skipped", "stale rows", "half rows", "bf16"), (1, 3, 10, 30, 100)
CPUS = tuple(name for name in KERNELS if name != GPU)
RECIPE = Recipe(exchanged="difference")
KINDS = stage_kinds(is_first=True, is_last=True, exchanged="difference")


class Lie(NamedTuple):
    """What is false in a claim; `share`: per cent of its steps, 0 where it is none of them."""

    name: str
    share: int = 0


HONEST, TWO_THREADS = Lie("honest"), Lie("two threads")
LIES = (
    TWO_THREADS,
    *(Lie(name, share) for name in STEP_LIES for share in SHARES),
    Lie("last"), Lie("scaled"), Lie("copied"),
)  # fmt: skip


class Claim(NamedTuple):
    """What a replica says of its steps, and what came of them."""

    steps: tuple[TracedStep, ...]
    difference: Tensor


class Model:
    """One model with a base, and the claims that are made on it."""

    def __init__(self, width: int) -> None:
        base = config_of(Run("local", seed=width))
        model = replace(base.model, width=width, num_layers=3, ffn_width=5 * width // 2)
        self._config: TrainConfig = replace(
            base, model=model, data=replace(base.data, rows_per_unit=2)
        )
        self._rows: UnitRows = rows_of(self._config)
        self._stage = Stage(model, whole_model(model), self._config.optimizer)
        self._base, self._before = self._stage.flat_weights.clone(), Tensor()
        for number in range(TRAINED // STEPS):
            self._take(Replica(self._stage), -1 - number)
            self._base = self._stage.flat_weights.clone()

    @property
    def num_parameters(self) -> int:
        """Of the whole model."""
        return self._stage.num_parameters

    def _take(self, replica: Replica, number: int) -> Claim:
        self._stage.flat_weights.copy_(self._base)
        replica.start(TRAINED)
        steps = []
        for step in range(STEPS):
            item = ItemNumber(STEPS * (number + 10) + step)
            inputs = {item: UnitInputs(rows_RT=rows_tensor(self._rows.load(item)))}
            seed = digest("bench detection", encode([self.num_parameters, int(item)]))
            steps.append(replica.step(inputs, seed))
        return Claim(tuple(steps), replica.difference().clone())

    def honest(self, number: int) -> Claim:
        """The claim of this number, and what every replay comes to."""
        return self._take(Replica(self._stage), number)

    def verdicts(self, number: int, own: Claim, lies: tuple[Lie, ...]) -> Iterator[tuple[Lie, str]]:
        """What a replay says of an honest claim, and of the same one with each lie."""
        honest = self.honest(number)
        yield HONEST, self._verdict(honest, own)
        for lie in lies:
            yield lie, self._verdict(self._told(lie, number, honest), own)
        self._before = honest.difference

    def _told(self, lie: Lie, number: int, honest: Claim) -> Claim:
        if lie == TWO_THREADS:
            torch.set_num_threads(2)
            try:
                return self.honest(number)
            finally:
                torch.set_num_threads(1)
        if lie.name == "scaled":
            return honest._replace(difference=SLIGHTLY * honest.difference)
        if lie.name == "copied":
            before = self._before if len(self._before) else torch.zeros_like(honest.difference)
            return honest._replace(difference=before)
        if lie.name == "last":
            wrong = {STEPS - 1}
        else:  # the first step has none before it
            count = min(lie.share, STEPS - 1)
            wrong = {*random.Random(f"{lie} {number}").sample(range(1, STEPS), count)}
        name = "skipped" if lie.name == "last" else lie.name
        return self._take(LyingReplica(self._stage, name, lambda step, _: step in wrong), number)

    def _verdict(self, claim: Claim, own: Claim) -> str:
        found, views = Comparison(RECIPE), self._stage.layout.views
        for told, replayed in zip(claim.steps, own.steps, strict=True):
            compare_steps(found, told, replayed)
        found.add_gradient(views(claim.difference), views(own.difference))
        limits = shipped_calibration().thresholds(RECIPE, KINDS, capability(), capability())
        return decide(tuple(found.distances()), limits)


def numbers_of(num_segments: int) -> range:
    """Of the claims that have so many segments."""
    return range(-(-num_segments // SEGMENTS))


def replay(num_segments: int, folder: Path) -> None:
    """In the class of this process: leave what every replay comes to."""
    models = [Model(width) for width in WIDTHS]
    for number in numbers_of(num_segments):
        torch.save(models[number % len(models)].honest(number), folder / str(number))


def claim(num_segments: int, num_claims: int, folder: Path) -> None:
    """In the class of this process: a line of JSON with claims and mismatches by lie."""
    models = [Model(width) for width in WIDTHS]
    claims, seen = Counter[Lie](), Counter[Lie]()
    for number in numbers_of(num_segments):
        own: Claim = torch.load(folder / str(number), weights_only=False)
        lies = LIES if number < num_claims else ()
        for lie, verdict in models[number % len(models)].verdicts(number, own, lies):
            claims[lie] += 1
            seen[lie] += verdict == "mismatch"
    rows = [[*lie, claims[lie], seen[lie]] for lie in claims]
    print(json.dumps([[model.num_parameters for model in models], rows]), flush=True)


def in_class(device: str, words: list[str]) -> Any:
    """Replay and claim in two processes of a class."""
    with tempfile.TemporaryDirectory() as folder:
        for role in ("replay", "claim"):
            done = subprocess.run(
                [sys.executable, "-m", "bench.local_detection", *words,
                 f"--device={device}", f"--role={role}", f"--folder={folder}"],
                check=True, cwd=ROOT, stdout=subprocess.PIPE,
                env=os.environ | dict(KERNELS[device]) | {"GOMP_SPINCOUNT": "0"},
            )  # fmt: skip
        tell(f"{device}: {done.stdout.decode()}")  # hours of work, if another class does not end
        return json.loads(done.stdout)


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--segments", type=int, default=10_000, help="honest ones, of all classes")
    parser.add_argument("--claims", type=int, default=20, help="with each lie, in each class")
    parser.add_argument("--only", default="", help="word in the names of the classes that are run")
    for name, kind in (("--device", str), ("--role", str), ("--folder", Path)):
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    options = parsed(parser, minutes=120, segments=180, claims=1)
    if options.role:
        if capability() != options.device:
            raise SystemExit(f"this process computes as {capability()}, not as {options.device}")
        set_threads(1)
        if options.role == "replay":
            replay(options.segments, options.folder)
        else:
            claim(options.segments, options.claims, options.folder)
        return
    share = -(-options.segments // len(CPUS))
    words = [f"--segments={share}", f"--claims={options.claims}"]
    with limit(options.minutes, "local_detection"), ThreadPoolExecutor(2) as pool:
        classes = [device for device in CPUS if options.only in device]
        found = list(pool.map(lambda device: in_class(device, words), classes))
    claims, seen = Counter[Lie](), Counter[Lie]()
    for _, rows in found:
        for name, of_steps, num_claims, num_seen in rows:
            claims[Lie(name, of_steps)] += num_claims
            seen[Lie(name, of_steps)] += num_seen
    print(markdown([_row(lie, claims[lie], seen[lie]) for lie in claims]))
    print(json.dumps({"parameters": found[0][0], "classes": classes} | about()))


def _row(lie: Lie, claims: int, seen: int) -> dict[str, Any]:
    low, high = clopper_pearson(seen, claims)
    return {
        "claim": lie.name,
        "of its steps, %": lie.share or "",
        "claims": claims,
        "segments": claims * SEGMENTS,
        "mismatch": seen,
        "rate, 95 %": f"{low:.4f} to {high:.4f}",
    }


if __name__ == "__main__":
    main()
