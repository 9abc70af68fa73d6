"""How many tokens a second does one stage train, beside the plain loop, in the same run?

`python -m tests.benchmarks.stage_throughput [--threads N] [--pairs N]` prints a table and one line
of JSON with machine, versions, commit and seed. Pairs are interleaved, so that a busy neighbour
slows both; the ratio is the median over pairs. The stage does what a peer does to numbers: units
of 4 rows, chunked gradient, wire bytes, norms, exact AdamW, state root. The plain loop has the
full batch of 32 rows and `torch.optim.AdamW`.
"""

import argparse
import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from contracts.terms.ids import StepNumber, UnitId
from tests.numerics.loop import new_stage, rows_of, sealed_norm, synthetic_corpus, train
from tests.numerics.plain import plain_losses
from training.config import TrainConfig, whole_model
from training.flops import unit_flops
from training.recipes import tiny_llama
from training.stages.exact import norm_squared
from training.stages.stage import Stage
from training.stages.threads import set_threads

STEPS_A_PAIR = 2
SEED = 1


def stage_seconds(stage: Stage, config: TrainConfig) -> float:
    """Seconds of one step of the stage, averaged over a pair's steps."""
    rows = rows_of(config, CORPUS)
    began = time.perf_counter()
    train(stage, config, rows, range(1, STEPS_A_PAIR + 1), num_chunks=4)
    return (time.perf_counter() - began) / STEPS_A_PAIR


def plain_seconds(config: TrainConfig) -> float:
    """Seconds of one step of the plain loop, without the making of its model."""
    marks = [0.0]

    def mark(step: int, loss: float) -> None:
        marks.append(time.perf_counter())

    plain_losses(replace(config, num_steps=STEPS_A_PAIR + 1), rows_of(config, CORPUS), on_step=mark)
    return (marks[-1] - marks[1]) / STEPS_A_PAIR


def update_milliseconds(stage: Stage) -> dict[str, float]:
    """Where a step's time outside the units goes, in ms."""
    average = torch.randn(stage.num_parameters, generator=torch.Generator().manual_seed(SEED))
    norm = sealed_norm([norm_squared(average)])

    def timed(action: Callable[[], object]) -> float:
        times = []
        for _ in range(9):
            began = time.perf_counter()
            action()
            times.append(time.perf_counter() - began)
        return round(1000 * statistics.median(times), 2)

    return {
        "norm": timed(lambda: norm_squared(average)),
        "update": timed(lambda: stage.apply(average, norm)),
        "state root": timed(stage.roots),
        "rows of a step": timed(lambda: _read_rows(stage)),
    }


def _read_rows(stage: Stage) -> None:
    rows = rows_of(CONFIG, CORPUS)
    for unit in range(CONFIG.data.units_per_step):
        rows.load(StepNumber(1), UnitId(unit))


def commit() -> str:
    """The checkout's commit, with a plus where it has changes; empty outside a repository."""
    folder = Path(__file__).parent
    answer = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--abbrev=12"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return answer.stdout.strip()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=10)
    options = parser.parse_args()
    set_threads(options.threads)
    stage = new_stage(CONFIG)
    stage_seconds(stage, CONFIG)
    pairs = [(stage_seconds(stage, CONFIG), plain_seconds(CONFIG)) for _ in range(options.pairs)]
    tokens = CONFIG.tokens_per_step
    ours, theirs = ([tokens / seconds for seconds in side] for side in zip(*pairs, strict=True))
    ratios = [plain / staged for staged, plain in pairs]
    whole = whole_model(CONFIG.model)
    step_flops = CONFIG.data.units_per_step * unit_flops(
        CONFIG.model, whole, CONFIG.data.rows_per_unit
    )
    result = {
        "stage_tokens_per_second": round(statistics.median(ours)),
        "plain_tokens_per_second": round(statistics.median(theirs)),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_range": [round(min(ratios), 3), round(max(ratios), 3)],
        "gflops_per_second": round(step_flops / tokens * statistics.median(ours) / 1e9, 1),
        "milliseconds": update_milliseconds(stage),
        "pairs": options.pairs,
        "threads": options.threads,
        "seed": SEED,
        "commit": commit(),
        "machine": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    for name, value in result.items():
        print(f"{name:26} {value}")
    print(json.dumps(result))


CONFIG = tiny_llama(seed=SEED)
CORPUS = synthetic_corpus(40_000)

if __name__ == "__main__":
    main()
