"""What do local steps cost in quality, and what do they save in bytes?

`python -m bench.local_steps [--out FILE] [--only WORDS] [--device NAME] [--quick]` trains a
byte-level Llama of 0.86 million parameters (width 128, 4 layers, 60 tokens a row, 4 rows a replica
and step) on the source text of Python's library, 2,000 inner steps and 1.92 million tokens in all,
and prints the loss on held-out rows and what a replica sends. Strategies, all on equal tokens and
schedules:

    every_step  the mean gradient of all replicas at every step, one AdamW
    classic     DiLoCo (arXiv 2311.08105): each replica carries its moments, fp32; `tests/numerics`
    local       ours: a round starts from sealed state alone; differences under a codec. Moments
                are zero (restart), or means of those of all replicas (mean); some steps of each
                round may be done before its weights are there (ahead)

Outer step: rate 1 without momentum, for all. Runs are kept in FILE as they end and not done again;
two (`--processes`) go on at a time, with a thread each. "ppl" is exp(loss); "over classic" and
"over every_step" are relative perplexities at equal replicas and seed (and H). Bytes are what one
replica sends for tensors, next to an all-reduce of fp32 gradients at every step.
"""

import argparse
import json
import math
import multiprocessing
import random
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from bench.measuring import about, limit, markdown, parsed, parser_of
from contracts.terms.digest import digest
from contracts.terms.encoding import encode
from contracts.terms.items import ItemNumber
from contracts.terms.messages import ShardCodecName
from tests.numerics.diloco import classic_diloco
from tests.support.corpora import Corpus, builtin_text, cut_corpus
from tests.support.fakes.blobs import MemoryBlobs
from training.compression.formats import part_bytes
from training.config import OptimizerConfig, TrainConfig, whole_model
from training.data.loading import UnitRows
from training.data.sources import BUILTIN_BYTES
from training.recipes import tiny_llama
from training.stages.exact import Moments, device_class, set_threads, weighted_mean
from training.stages.stage import Stage, UnitInputs, rows_tensor
from training.strategies.local.exchange import LocalCodec
from training.strategies.local.inner import Replica
from training.strategies.local.outer import apply_outer, apply_root

STEPS, QUICK_STEPS = 2000, 20
VALIDATION_ROWS = 512
CODECS: tuple[ShardCodecName, ...] = ("none", "bfloat16", "seeded8", "seeded4")
FP32 = 4
PUBLISHED = """Published relative perplexities, of longer runs:
H = 1,000 beside H = 50: +2.9 %; half of the contributions dropped: +2.1 % at most; 8 replicas at
H = 500 beside an 8 times larger batch: -1.8 % (DiLoCo, 2311.08105, figures 4 and 8, table 2).
H = 20, 50, 100, 200 beside H = 10: +2.4, 7.9, 9.1, 11.9 %; H = 50 beside every step: -0.2 %
(180 M parameters, 2,000 steps; DiLoCo-SWARM, github.com/mikasenghaas/diloco-swarm)."""


@dataclass(frozen=True)
class Run:
    """One training run; together with the sizes above it decides every number."""

    strategy: Literal["every_step", "classic", "local"]
    inner_steps: int = 1
    codec: ShardCodecName = "none"
    moments: Literal["restart", "mean"] = "restart"
    replicas: int = 4
    dropped: int = 0  # per cent of all contributions
    ahead: int = 0  # steps of a round that are done on the weights before the newest update
    seed: int = 1
    steps: int = STEPS

    @property
    def name(self) -> str:
        """What `--only` looks for."""
        own = f"{self.codec} {self.moments} " if self.strategy == "local" else ""
        own += f"ahead={self.ahead} " if self.ahead else ""
        return (
            f"{self.strategy} H={self.inner_steps} {own}k={self.replicas} "
            f"drop={self.dropped} seed={self.seed}"
        )


def all_runs() -> Iterator[Run]:
    """What the table asks for, the most wanted first."""
    every, classic, local = Run("every_step"), Run("classic"), Run("local")
    for seed in (1, 2, 3):
        yield replace(every, seed=seed)
        yield replace(classic, inner_steps=50, seed=seed)
        for moments in ("restart", "mean"):
            for codec in ("none", "seeded4"):
                yield replace(local, inner_steps=50, codec=codec, moments=moments, seed=seed)
    for inner_steps in (10, 50, 100, 500):
        yield replace(classic, inner_steps=inner_steps)
        for codec in CODECS:
            yield replace(local, inner_steps=inner_steps, codec=codec)
    for dropped in (10, 30, 50):
        yield replace(local, inner_steps=50, codec="seeded4", dropped=dropped)
    for ahead in (10, 25, 50):
        yield replace(local, inner_steps=50, codec="seeded4", ahead=ahead)
    for replicas in (1, 2, 8):
        yield replace(every, replicas=replicas)
        yield replace(local, inner_steps=50, codec="seeded4", replicas=replicas)


def config_of(run: Run) -> TrainConfig:
    """Model, inner optimiser and data of a run."""
    base = tiny_llama(seed=run.seed)
    return TrainConfig(
        model=replace(
            base.model, width=128, num_layers=4, num_kv_heads=4, ffn_width=344, sequence_length=60
        ),
        optimizer=OptimizerConfig(
            learning_rate=0.004, total_steps=run.steps, warmup_steps=run.steps // 20
        ),
        data=replace(base.data, units_per_step=run.replicas),
        num_steps=run.steps,
    )


@cache
def corpus() -> Corpus:
    """The built-in corpus, cut."""
    return cut_corpus(builtin_text(BUILTIN_BYTES), shard_bytes=32_768)


def rows_of(config: TrainConfig) -> UnitRows:
    """Rows of the corpus under a configuration."""
    blobs = MemoryBlobs(corpus().blobs)
    return UnitRows(corpus().manifest, config.data, config.model.sequence_length, blobs)


def is_dropped(run: Run, round: int, replica: int) -> bool:
    """Whether a contribution is lost, the same in every strategy."""
    return random.Random(f"{run.seed} {round} {replica}").random() < run.dropped / 100


# -------------------------------------------------------------------------------- the strategies


def train(run: Run, device: str) -> dict[str, Any]:
    """Train, and evaluate the weights that come out."""
    set_threads(1)
    config = config_of(run)
    rows = rows_of(config)
    stage = Stage(config.model, whole_model(config.model), config.optimizer, device=device)
    if run.strategy == "classic":
        weights = classic_diloco(
            config, rows, replicas=run.replicas, inner_steps=run.inner_steps, outer_rate=1.0,
            outer_momentum=0.0, device=device,
            is_dropped=lambda round, replica: is_dropped(run, round, replica),
        )  # fmt: skip
        for name, own in stage.weights().items():
            own.copy_(weights[name])
    elif run.strategy == "local":
        _train_local(run, stage, rows)
    else:
        _train_every_step(run, stage, rows)
    return asdict(run) | {
        "loss": round(_validation_loss(stage, rows), 4),
        "bytes sent": _bytes_sent(run, stage.num_parameters),
        "parameters": stage.num_parameters,
        "device": device_class(stage.device),
    }


def _inputs(rows: UnitRows, item: ItemNumber) -> UnitInputs:
    return UnitInputs(rows_RT=rows_tensor(rows.load(item)))


def _train_every_step(run: Run, stage: Stage, rows: UnitRows) -> None:
    replica, zeros = Replica(stage), torch.zeros(2, stage.num_parameters, device=stage.device)
    replica.start(0, Moments(*zeros))
    for step in range(run.steps):
        items = [ItemNumber(step * run.replicas + k) for k in range(run.replicas)]
        replica.step({item: _inputs(rows, item) for item in items})


def _train_local(run: Run, stage: Stage, rows: UnitRows) -> None:
    codec, size, replica = LocalCodec(run.codec), stage.num_parameters, Replica(stage)
    base, momentum, *zeros = stage.flat_weights.clone(), *torch.zeros(3, size, device=stage.device)
    sealed, previous = Moments(*zeros) if run.moments == "mean" else None, base
    for round in range(run.steps // run.inner_steps):
        shards: list[Tensor] = []
        for k in range(run.replicas):
            stage.flat_weights.copy_(previous if run.ahead else base)
            first = round * run.inner_steps
            replica.start(first, sealed)
            for step in range(first, first + run.inner_steps):
                if step == first + run.ahead > first:
                    replica.rebase(base)
                item = ItemNumber(step * run.replicas + k)
                replica.step({item: _inputs(rows, item)})
            if run.ahead == run.inner_steps:
                replica.rebase(base)
            if not is_dropped(run, round, k):
                seed = digest("bench rounding", encode([run.seed, round, k]))
                shards.append(_sent(codec, replica.difference(), size, seed))
        previous = base.clone()
        if shards:
            mean = weighted_mean(shards, [1] * len(shards))
            mean = codec.read_mean(codec.mean(mean), len(mean)).to(stage.device)
            difference, *moments = mean.split(size)
            apply_outer(base, momentum, difference, rate=1.0, mu=0.0)
            if sealed is not None:
                sealed.exp_avg.copy_(moments[0])
                apply_root(sealed.exp_avg, sealed.exp_avg_sq, moments[1], stage.optimizer)
    stage.flat_weights.copy_(base)


def _sent(codec: LocalCodec, difference: Tensor, size: int, seed: bytes) -> Tensor:
    """What a replica exchanges, as it is read: moments travel under the codec of means."""
    means, (own, *moments) = LocalCodec(codec.mean_name), difference.split(size)
    sent = [codec.read_shard(codec.shard(own, seed), size)]
    sent += [means.read_shard(means.shard(each, seed), size) for each in moments]
    return torch.cat(sent)


def _validation_loss(stage: Stage, rows: UnitRows) -> float:
    rows_RT = rows_tensor(rows.validation_rows(VALIDATION_ROWS))
    return float(stage.losses(rows_RT[:, :-1], rows_RT[:, 1:]).cpu().mean())


def _bytes_sent(run: Run, size: int) -> float:
    """By one replica, whose bucket is one part of all: its shards, and its mean to the others."""
    shard, mean = (FP32 * size, FP32 * size)
    if run.strategy == "local":
        shard = part_bytes(run.codec, size)
        mean = part_bytes(LocalCodec(run.codec).mean_name, size)
        if run.moments == "mean":
            shard, mean = shard + 2 * mean, 3 * mean
    rounds = run.steps // run.inner_steps
    return rounds * (shard + mean) * (run.replicas - 1) / run.replicas


# ------------------------------------------------------------------------------------ all of it


def measure(
    runs: Iterable[Run], out: Path, device: str, num_processes: int
) -> list[dict[str, Any]]:
    """Do what is not in `out` yet; everything that is in it."""
    done = _kept(out)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_processes, mp_context=context) as pool:
        wanted = [run for run in dict.fromkeys(runs) if run not in done]
        futures = {pool.submit(train, run, device): run for run in wanted}
        for future in as_completed(futures):
            found = future.result()
            done[futures[future]] = found
            with out.open("a") as file:
                print(json.dumps(found), file=file)
            print(f"{futures[future].name}: loss {found['loss']}", flush=True)
    return list(done.values())


def _kept(out: Path) -> dict[Run, dict[str, Any]]:
    lines = out.read_text().splitlines() if out.exists() else []
    return _by_run(map(json.loads, lines))


def _by_run(found: Iterable[dict[str, Any]]) -> dict[Run, dict[str, Any]]:
    return {Run(**{n: each[n] for n in Run.__annotations__ if n in each}): each for each in found}


def table(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each run."""
    losses, shown = _by_run(found), []
    for run, each in losses.items():
        plain = Run("every_step", replicas=run.replicas, seed=run.seed, steps=run.steps)
        classic = replace(plain, strategy="classic", inner_steps=run.inner_steps)
        data_parallel = _bytes_sent(plain, each["parameters"])
        sent = each["bytes sent"]
        shown.append(
            {
                "run": run.name,
                "loss": each["loss"],
                "ppl": round(math.exp(each["loss"]), 3),
                "over classic, %": _over(losses, each, classic),
                "over every_step, %": _over(losses, each, plain),
                "times fewer bytes": round(data_parallel / sent) if sent else None,
            }
        )
    return shown


def _over(losses: dict[Run, dict[str, Any]], each: dict[str, Any], other: Run) -> float | None:
    if other not in losses:
        return None
    return round(100 * math.expm1(each["loss"] - losses[other]["loss"]), 1)


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--out", type=Path, default=Path("local_steps.jsonl"))
    parser.add_argument("--only", default="", help="runs whose name has this")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--processes", type=int, default=2, help="runs at a time")
    parser.add_argument("--steps", type=int, default=STEPS, help=argparse.SUPPRESS)
    options = parsed(parser, minutes=300, steps=QUICK_STEPS, only="H=10 ", out=Path("/dev/null"))
    runs = [replace(run, steps=options.steps) for run in all_runs() if options.only in run.name]
    with limit(options.minutes, "local_steps"):
        found = measure(runs, options.out, options.device, options.processes)
    print(markdown(table(found)))
    print(PUBLISHED)
    print(json.dumps(about(steps=options.steps, device=options.device)))


if __name__ == "__main__":
    main()
