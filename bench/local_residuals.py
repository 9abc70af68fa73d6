"""How far is an honest replay of local steps from the claim, step by step, and how far is a lie?

`python -m bench.local_residuals [--steps N] [--device NAME] [--quick]` lets one replica of the
model of `bench.local_steps` take N inner steps (500) with a trace, and again in processes of other
CPU classes and threads. With `--device cuda` it does so on a GPU too: the claim of the CPU once
more, a claim of the GPU once more by itself and by the CPU, and lies of the GPU.

Residual: root mean square of the differences of a step's eight projections, an estimate of the
relative L2 distance of the two gradients. Printed are its medians over the ten steps up to steps
10, 50, 100, 200, 300 and 500, and the share of 4-bit codes of the difference that differ under the
claim's seed. Lies are told in the class of the claim, in every tenth step:

    skipped      the gradient of the step before is used again, also for the projections
    stale rows   the rows of the step before are
    half rows    half of the rows are
    bf16         weights are rounded to bfloat16 before the gradient (in every step)
    last         as skipped, in the last step alone
    tf32         products are in TF32 (in every step, of a GPU alone)

and the residuals of the steps with a lie are given apart: the least, and the median.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.local_steps import STEPS, Run, config_of, rows_of
from bench.measuring import ROOT, about, limit, markdown, parsed, parser_of
from contracts.terms.digest import digest
from contracts.terms.encoding import encode
from contracts.terms.items import ItemNumber
from tallystick.gym.local_steps import LyingReplica
from training.compression.formats import SEEDED_BLOCK
from training.config import whole_model
from training.stages.exact import set_threads
from training.stages.stage import Stage, UnitInputs, rows_tensor
from training.strategies.local.exchange import LocalCodec
from training.strategies.local.trace import residual


@dataclass(frozen=True)
class Place:
    """Where steps are taken. `capability`: ATEN_CPU_CAPABILITY, empty for the machine's own."""

    capability: str = ""
    threads: int = 1
    device: str = "cpu"

    def __str__(self) -> str:
        """For the table."""
        own = self.capability or "own class"
        return f"{own}, {self.threads} threads" if self.device == "cpu" else self.device


CLAIM = Place()
REPLAYS = (Place("avx2"), Place("default"), Place(threads=2))
LIES = ("skipped", "stale rows", "half rows", "bf16", "last")
ALL_STEPS = ("bf16", "tf32")
EVERY = 10
MARKS = (10, 50, 100, 200, 300, 500)


def lied(lie: str, num_steps: int) -> Sequence[int]:
    """In which steps."""
    if lie in ALL_STEPS:
        return range(num_steps)
    starts = {"": num_steps, "last": num_steps - 1}
    return range(starts.get(lie, EVERY - 1), num_steps, EVERY)


def liar(stage: Stage, lie: str, num_steps: int) -> LyingReplica:
    """A replica that lies in these steps."""
    wrong = lied(lie, num_steps)
    return LyingReplica(stage, "skipped" if lie == "last" else lie, lambda step, _: step in wrong)


def take_steps(options: argparse.Namespace) -> None:
    """Take the steps, and write traces and the shard of the difference."""
    lie, num_steps = options.lie, options.steps
    set_threads(options.threads)
    config = config_of(Run("local", steps=STEPS))
    rows = rows_of(config)
    stage = Stage(config.model, whole_model(config.model), config.optimizer, device=options.device)
    replica, traces = liar(stage, lie, num_steps), []
    replica.start(0)
    if lie == "tf32":
        torch.set_float32_matmul_precision("high")
    for step in range(num_steps):
        item = ItemNumber(step * config.data.units_per_step)
        inputs = UnitInputs(rows_RT=rows_tensor(rows.load(item)))
        found = replica.step({item: inputs}, digest("bench trace", encode([step])))
        traces.append(found.projections)
    shard = LocalCodec("seeded4").shard(replica.difference(), digest("bench", encode([1])))
    options.write.write_text(json.dumps({"traces": traces, "shard": shard.hex()}))


def in_process(place: Place, lie: str, num_steps: int) -> dict[str, Any]:
    """The same in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out")
        words = [f"--lie={lie}", f"--threads={place.threads}", f"--device={place.device}"]
        words += [f"--steps={num_steps}", f"--write={out}"]
        own = {"ATEN_CPU_CAPABILITY": place.capability} if place.capability else {}
        subprocess.run(
            [sys.executable, "-m", "bench.local_residuals", *words],
            check=True, cwd=ROOT, env=os.environ | own,
        )  # fmt: skip
        found: dict[str, Any] = json.loads(out.read_text())
        return found


def row(name: str, lie: str, claim: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """One line of the table."""
    pairs = zip(claim["traces"], other["traces"], strict=True)
    residuals = [residual(one, two) for one, two in pairs]
    wrong = set(lied(lie, len(residuals)))
    told = [residuals[step] for step in wrong]
    return {
        "replay of": name,
        **{f"to {last}": _honest(residuals, wrong, last) for last in MARKS},
        "lies, least": f"{min(told):.1e}" if told else "",
        "lies, median": f"{statistics.median(told):.1e}" if told else "",
        "codes that differ, %": round(100 * _differing(claim["shard"], other["shard"]), 2),
    }


def _honest(residuals: Sequence[float], wrong: set[int], last: int) -> str:
    steps = [step for step in range(last - EVERY, last) if step not in wrong]
    found = [residuals[step] for step in steps if step < len(residuals)]
    return f"{statistics.median(found):.1e}" if found else ""


def _differing(one: str, two: str) -> float:
    """Share of the 4-bit codes that differ."""
    a, b = (np.frombuffer(bytes.fromhex(each), np.uint8) for each in (one, two))
    # A byte a block of 64 elements comes first, then half a byte an element.
    num_blocks = len(a) // (1 + SEEDED_BLOCK // 2)
    changed = a[num_blocks:] ^ b[num_blocks:]
    return float(((changed & 15 > 0).mean() + (changed >> 4 > 0).mean()) / 2)


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--lie", default="", help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--processes", type=int, default=1, help="at a time")
    options = parsed(parser, minutes=60, steps=20)
    if options.write:
        take_steps(options)
        return
    with limit(options.minutes, "local_residuals"):
        rows = measure(options.device, options.processes, options.steps)
    print(markdown(rows))
    print(json.dumps(about(steps=options.steps, device=options.device)))


def measure(device: str, num_processes: int, num_steps: int) -> list[dict[str, Any]]:
    """A row for each replay, and for each lie."""
    gpu = [] if device == "cpu" else [Place(device=device)]
    pairs = [(CLAIM, replay, "") for replay in (*REPLAYS, *gpu)]
    pairs += [(own, replay, "") for own in gpu for replay in (own, CLAIM)]
    pairs += [(own, own, lie) for own in (CLAIM, *gpu) for lie in LIES]
    pairs += [(own, own, "tf32") for own in gpu]
    with ThreadPoolExecutor(num_processes) as pool:
        claims = {
            own: pool.submit(in_process, own, "", num_steps) for own in dict.fromkeys((CLAIM, *gpu))
        }
        others = [pool.submit(in_process, at, lie, num_steps) for _, at, lie in pairs]
        return [
            row(f"{own} by {at}" if not lie else f"{own}: {lie}", lie, claims[own].result(), each)
            for (own, at, lie), each in zip(
                pairs, (other.result() for other in others), strict=True
            )
        ]


if __name__ == "__main__":
    main()
