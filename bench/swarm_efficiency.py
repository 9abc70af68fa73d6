"""What does it cost to train in a swarm instead of a loop, and where does the time go?

`python -m bench.swarm_efficiency [--pairs N] [--steps N] [--quick]` prints a table and one line of
JSON. A job of about 20 million parameters (width 384, 12 layers, 256 tokens a row, items of 2 rows,
32 a step, fp32) runs on a whole market, every service, commitment and seal: two stages, one
peer with one thread each. Beside it:

    two threads     one loop of the same model with two threads
    twice one       two such loops at once with one thread each; their tokens/s are added

The loops have what a good loop has: our decoder (`scaled_dot_product_attention`), gradients added
over items of 2 rows, `torch.optim.AdamW`, clipping. All three live for the whole run and take
turns, so that a busy neighbour slows all of them: the swarm's coordinator stops itself by a
failpoint at the seal before a turn, and the loops wait for a line of input. The first step after a
turn begins is not counted. Ratios are medians over the turns. Nothing else should use the cores.

Where the time goes is told twice: in parts of a step by the coordinator's lines, and in parts of
the two cores: what the peers' lines say they took, and CPU time by process from /proc.
"""

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

from bench.measuring import MICROSECONDS, about, cpu_seconds, limit, parsed, parser_of, spread
from contracts.terms.ids import JobId
from contracts.terms.items import ItemNumber
from tallystick.up.processes import RUN_ID, SERVICE, environment_of, running, send
from tallystick.watch.phases import Phase, next_phase
from tests.numerics.loop import rows_of, synthetic_corpus
from tests.support.stack import ROOT, Stack, stack
from training.config import ModelConfig, TrainConfig, whole_model
from training.models.decoder import StageModel
from training.models.initial import initial_weights
from training.recipes import tiny_llama
from training.stages.exact import set_threads
from training.stages.stage import rows_tensor

SEED = 1
CORES = 2
FIRST_TURN = 4
MODEL: dict[str, Any] = {
    "width": 384, "num_layers": 12, "num_heads": 6, "num_kv_heads": 6, "ffn_width": 960,
    "sequence_length": 256,
}  # fmt: skip
QUICK: dict[str, Any] = MODEL | {"width": 96, "num_layers": 2, "ffn_width": 128}
UNITS, ROWS = 32, 2
MEMORY = 8192  # MiB that each machine offers: a stage of the job needs most of it
PATIENCE = 10.0  # minutes for one turn

Seconds: TypeAlias = dict[str, float]


def config_of(model: dict[str, Any], num_steps: int) -> TrainConfig:
    """The configuration that the loops and the job share."""
    base = tiny_llama(seed=SEED)
    sizes = {"vocab_size": base.model.vocab_size, "init_seed": SEED} | model
    return TrainConfig(
        model=ModelConfig(**sizes),
        optimizer=replace(base.optimizer, total_steps=num_steps, warmup_steps=1),
        data=replace(base.data, rows_per_unit=ROWS, units_per_step=UNITS, seed=SEED),
        num_steps=num_steps,
    )


# ------------------------------------------------------------------------------------- the loops


class PlainLoop:
    """Trains the whole model in one process, as one would without a swarm."""

    def __init__(self, config: TrainConfig) -> None:
        self._config = config
        self._model = StageModel(config.model, whole_model(config.model))
        weights = initial_weights(config.model, whole_model(config.model))
        self._model.load_state_dict(weights, assign=True)
        for parameter in self._model.parameters():
            parameter.requires_grad_()
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), lr=config.optimizer.learning_rate, betas=(0.9, 0.95)
        )
        self._rows = rows_of(config, synthetic_corpus(40_000))

    def step(self, number: int) -> None:
        """One step of gradients added over units, clipped and applied."""
        self._optimizer.zero_grad()
        for item in range((number - 1) * UNITS, number * UNITS):
            rows_RT = rows_tensor(self._rows.load(ItemNumber(item)))
            logits_RTV = self._model(rows_RT[:, :-1])
            loss = functional.cross_entropy(logits_RTV.flatten(0, 1), rows_RT[:, 1:].flatten())
            (loss / UNITS).backward()
        clip_grad_norm_(self._model.parameters(), self._config.optimizer.clip_norm)
        self._optimizer.step()


def loop_process(threads: int, model: dict[str, Any]) -> None:
    """Train as many steps as each line of input says, and print the seconds of all but one."""
    set_threads(threads)
    loop, number = PlainLoop(config_of(model, 1000)), 0
    print("ready", flush=True)
    for line in sys.stdin:
        marks = []
        for _ in range(1 + int(line)):
            number += 1
            loop.step(number)
            marks.append(time.perf_counter())
        print(marks[-1] - marks[0], flush=True)


class LoopProcess:
    """A loop in a process of its own; it is ready when its model is built."""

    def __init__(self, threads: int, *, quick: bool) -> None:
        words = ["-m", "bench.swarm_efficiency", "--loop", str(threads), *["--quick"] * quick]
        self.process = subprocess.Popen(
            [sys.executable, *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        self._read()

    def _read(self) -> str:
        assert self.process.stdout is not None
        with limit(PATIENCE, "a line of a loop"):
            return self.process.stdout.readline()

    def go(self, num_steps: int) -> None:
        """Begin a turn."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{num_steps}\n")
        self.process.stdin.flush()

    def seconds(self) -> float:
        """Wait for the end of the turn."""
        return float(self._read())


def loops_speed(loops: list[LoopProcess], num_steps: int, tokens: int) -> float:
    """Tokens/s of loops that run at once, added."""
    for loop in loops:
        loop.go(num_steps)
    return sum(num_steps * tokens / loop.seconds() for loop in loops)


# ------------------------------------------------------------------------------------- the swarm


@dataclass
class Turn:
    """What a turn of the swarm showed."""

    seconds: float  # a step
    phases: Seconds  # seconds of the coordinator's phases
    told: Seconds  # seconds that the peers' lines took, by event
    used: Seconds  # CPU seconds by kind of process


class Swarm:
    """A job on a market, whose coordinator stops at the beginning of each turn."""

    def __init__(self, running_stack: Stack, job: JobId, providers: list[str]) -> None:
        self._stack, self._job, self._providers = running_stack, job, providers

    async def turn(self, begins: int, num_steps: int) -> Turn:
        """Train from step `begins`, where the coordinator stands, and time the last `num_steps`."""
        first = begins  # not counted
        last = begins + num_steps
        await self.wake()
        since = await self._sealed(first)
        before = self._cpu_seconds()
        until = await self._sealed(last)
        used = {name: now - before.get(name, 0.0) for name, now in self._cpu_seconds().items()}
        await self.standing(last + 1)
        return Turn(
            (until["mono"] - since["mono"]) * MICROSECONDS / num_steps,
            self._phases(first, last),
            self._told(since["at"], until["at"]),
            used,
        )

    async def wake(self) -> None:
        """Let the coordinator go on."""
        for identity in self._stack.find("tallystick.coordinator", mentions=self._job.hex()):
            send(identity, signal.SIGCONT)

    async def standing(self, step: int) -> None:
        """Wait until the coordinator stands at the beginning of a step."""
        with limit(PATIENCE, f"the coordinator to stand at step {step}"):
            log = self._stack.coordinator_log(self._job)
            await self._stack.wait_line(log, "failpoint", step=step - 1, within=60 * PATIENCE)

    async def _sealed(self, step: int) -> dict[str, Any]:
        log = self._stack.coordinator_log(self._job)
        with limit(PATIENCE, f"the seal of step {step}"):
            return await self._stack.wait_line(log, "seal_stored", step=step, within=60 * PATIENCE)

    def _phases(self, first: int, last: int) -> Seconds:
        found: Seconds = defaultdict(float)
        now: Phase | None = None
        for line in self._stack.events(self._stack.coordinator_log(self._job)):
            if "step" in line:
                now, passed = next_phase(now, line["event"], line["step"], line["mono"])
                if passed is not None and first < passed.step <= last:
                    found[passed.name] += passed.took_us / 1e6
        return found

    def _told(self, since: int, until: int) -> Seconds:
        found: Seconds = defaultdict(float)
        for name in self._providers:
            for line in self._stack.events(self._stack.peer_log(name, self._job)):
                if since < line["at"] <= until and "took_us" in line:
                    found[line["event"]] += line["took_us"] / 1e6
        return found

    def _cpu_seconds(self) -> Seconds:
        used: Seconds = defaultdict(float)
        for one in running():
            about = environment_of(one.pid)
            if about.get(RUN_ID) == self._stack.run_id:
                used[_kind(one.pid, about.get(SERVICE, ""))] += cpu_seconds(one.pid)
        return used


def _kind(pid: int, service: str) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "gone"
    module = words[words.index("-m") + 1] if "-m" in words else ""
    kinds = {
        "tallystick.provider.peer": "peers",
        "tallystick.coordinator": "coordinator",
    }
    return kinds.get(module, "agents" if service.startswith("provider") else "services")


@asynccontextmanager
async def swarm(folder: Path, model: dict[str, Any], turns: list[int]) -> AsyncIterator[Swarm]:
    """A job whose coordinator stops at these steps; it stands at the first of them."""
    names = ["ann", "bob"]
    async with stack(folder, forked=True) as running_stack:
        for name in names:
            running_stack.start_provider(name, ask="1", memory=MEMORY)
        submitted = await running_stack.submit(
            name="efficiency",
            recipe="tiny_llama",
            model={"init_seed": SEED} | model,
            data_seed=SEED,
            steps=turns[-1],
            stages=2,
            units_per_step=UNITS,
            rows_per_unit=ROWS,
            price_ceiling=10,
            deadline="1d",
            validate_every=turns[-1],
            checkpoint_every=turns[-1],
        )
        job_folder = running_stack.job_folder(submitted.job)
        job_folder.mkdir(parents=True, exist_ok=True)
        points = ",".join(f"stop:seal_stored:{step - 1}" for step in turns)
        (job_folder / "failpoints-coordinator").write_text(points)
        found = Swarm(running_stack, submitted.job, names)
        log = running_stack.coordinator_log(submitted.job)
        with limit(PATIENCE, "the job to be matched and opened"):
            await running_stack.wait_line(log, "opened", within=60 * PATIENCE)
        await found.standing(turns[0])
        yield found
        (job_folder / "failpoints-coordinator").unlink()
        await found.wake()


# ------------------------------------------------------------------------------------ all of it


async def measure(pairs: int, steps: int, *, quick: bool) -> dict[str, Any]:
    """Let the three take turns."""
    model = QUICK if quick else MODEL
    config = config_of(model, 1)
    tokens = config.tokens_per_step
    turns = [FIRST_TURN + number * (steps + 1) for number in range(pairs + 1)]
    speeds: dict[str, list[float]] = {"swarm": [], "two threads": [], "twice one": []}
    seen: list[Turn] = []
    with tempfile.TemporaryDirectory(prefix="tallystick-efficiency-") as folder:
        async with AsyncExitStack() as started:
            double, single = started.enter_context(loops(quick=quick))
            job = await started.enter_async_context(swarm(Path(folder), model, turns))
            for begins in turns[:-1]:
                seen.append(await job.turn(begins, steps))
                speeds["swarm"].append(tokens / seen[-1].seconds)
                for name, group in (("two threads", double), ("twice one", single)):
                    speed = await asyncio.to_thread(loops_speed, group, steps, tokens)
                    speeds[name].append(speed)
                print({name: round(values[-1]) for name, values in speeds.items()}, flush=True)
    cores = CORES * steps * sum(turn.seconds for turn in seen)
    return {
        **{f"{name}, tokens/s": spread(values, 0) for name, values in speeds.items()},
        "swarm / two threads": _ratio(speeds, "two threads"),
        "swarm / twice one": _ratio(speeds, "twice one"),
        "parts of a step, %": _parts([turn.phases for turn in seen]),
        "parts of the cores by peers' lines, %": _parts([turn.told for turn in seen], cores),
        "parts of the cores by process, %": _parts([turn.used for turn in seen], cores),
        "parameters": sum(
            weight.numel()
            for weight in initial_weights(config.model, whole_model(config.model)).values()
        ),
    }


@contextmanager
def loops(*, quick: bool) -> Iterator[tuple[list[LoopProcess], list[LoopProcess]]]:
    """Loops in processes of their own: one with two threads, and two with one."""
    started: list[LoopProcess] = []
    try:
        for threads in (CORES, *[1] * CORES):
            started.append(LoopProcess(threads, quick=quick))
        yield started[:1], started[1:]
    finally:
        for loop in started:
            loop.process.kill()
            loop.process.wait()


def _ratio(speeds: dict[str, list[float]], name: str) -> dict[str, float]:
    pairs = zip(speeds["swarm"], speeds[name], strict=True)
    return spread([ours / theirs for ours, theirs in pairs], 3)


def _parts(turns: list[Seconds], whole: float | None = None) -> Seconds:
    """Parts in per cent of `whole`, or else of their sum; largest first."""
    total: Seconds = defaultdict(float)
    for turn in turns:
        for name, seconds in turn.items():
            total[name] += seconds
    whole = whole or sum(total.values()) or 1.0
    ordered = sorted(total.items(), key=lambda part: -part[1])
    return {name: round(100 * seconds / whole, 1) for name, seconds in ordered}


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=2, help="counted steps of a turn")
    parser.add_argument("--loop", type=int, help=argparse.SUPPRESS)
    options = parsed(parser, minutes=90, pairs=2, steps=1)
    if options.loop:
        loop_process(options.loop, QUICK if options.quick else MODEL)
        return
    with limit(options.minutes, "swarm_efficiency"):
        result = asyncio.run(measure(options.pairs, options.steps, quick=options.quick))
    for name, value in result.items():
        print(f"{name:40} {value}")
    asked = {"pairs": options.pairs, "steps": options.steps, "seed": SEED}
    print(json.dumps(result | about(**asked)))


if __name__ == "__main__":
    main()
