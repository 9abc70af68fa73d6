"""How many tokens a second does one stage train, beside the plain loop, in the same run?

`python -m bench.stage_throughput [--threads N] [--pairs N]` prints a table and one line
of JSON. Pairs are interleaved, so that a busy neighbour
slows both; the ratio is the median over pairs. The stage does what a peer does to numbers: units
of 4 rows, chunked gradient, wire bytes, norms, exact AdamW, state root. The plain loop has the
full batch of 32 rows and `torch.optim.AdamW`.
"""

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from bench.measuring import about, limit, parsed, parser_of, spread
from contracts.terms.items import ItemNumber
from tests.numerics.loop import new_stage, rows_of, sealed_norm, synthetic_corpus, train
from tests.numerics.plain import plain_losses
from training.averaging.norms import norm_squared
from training.config import TrainConfig, whole_model
from training.flops import item_flops
from training.recipes import tiny_llama
from training.stages.exact import set_threads, to_wire
from training.stages.stage import Stage

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
    norm = sealed_norm([norm_squared(to_wire(average))])

    def timed(action: Callable[[], object]) -> float:
        times = []
        for _ in range(9):
            began = time.perf_counter()
            action()
            times.append(time.perf_counter() - began)
        return round(1000 * statistics.median(times), 2)

    return {
        "norm": timed(lambda: norm_squared(to_wire(average))),
        "update": timed(lambda: stage.apply([average], norm)),
        "state root": timed(stage.roots),
        "rows of a step": timed(lambda: _read_rows(stage)),
    }


def _read_rows(stage: Stage) -> None:
    rows = rows_of(CONFIG, CORPUS)
    for unit in range(CONFIG.data.units_per_step):
        rows.load(ItemNumber(unit))


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=10)
    options = parsed(parser, minutes=30, pairs=1)
    set_threads(options.threads)
    stage, tokens = new_stage(CONFIG), CONFIG.tokens_per_step
    with limit(options.minutes, f"{options.pairs} pairs"):
        stage_seconds(stage, CONFIG)
        pairs = [
            (stage_seconds(stage, CONFIG), plain_seconds(CONFIG)) for _ in range(options.pairs)
        ]
        milliseconds = update_milliseconds(stage)
    speed = statistics.median(tokens / ours for ours, _ in pairs)
    a_unit = item_flops(CONFIG.model, whole_model(CONFIG.model), CONFIG.data.rows_per_unit)
    flops = CONFIG.data.units_per_step * a_unit
    result = {
        "stage tokens/s": round(speed),
        "plain tokens/s": round(statistics.median(tokens / plain for _, plain in pairs)),
        "stage / plain": spread([plain / ours for ours, plain in pairs], 3),
        "GFLOP/s": round(flops / tokens * speed / 1e9, 1),
        "milliseconds": milliseconds,
    }
    for name, value in result.items():
        print(f"{name:26} {value}")
    asked = {"pairs": options.pairs, "threads": options.threads, "seed": SEED}
    print(json.dumps(result | about(**asked)))


CONFIG = tiny_llama(seed=SEED)
CORPUS = synthetic_corpus(40_000)

if __name__ == "__main__":
    main()
