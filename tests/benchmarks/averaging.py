"""How fast do peers average a gradient, beside gloo; and how soon again after one is killed?

A real job in real processes over the real transport: coordinator, trainer and peers, whose units
cost nothing (`averaging_process`). An exchange is a step from its StepClose to the moment when all
peers have applied its averages: parts bound, fetched, checked, summed, sealed, fetched, each on
disk before it is spoken of. Gloo all-reduces as many floats between as many processes before and
after, in memory, unencrypted and unchecked: what it has on us is what all that costs.
For kills one of four peers gets SIGKILL at a drawn moment of an exchange; the next complete one is
that after which all others have applied the same step.

`python -m tests.benchmarks.averaging [--elements N] [--peers 2 4 8] [--rounds N] [--kills N]
[--codecs none bfloat16] [--folder DIR]` prints tables and a line of JSON. Seconds, MB = 1e6 bytes.
"""

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Self, get_args

import torch

from contracts.terms.messages import GradientCodecName
from tests.benchmarks.averaging_process import SEED, AveragingJob
from tests.support.swarm_job import COORDINATOR, TRAINER

KILLED_AMONG = 4  # peers of an exchange in which one is killed
PATIENCE = 300.0  # seconds for anything to happen at all
LOOK_EVERY = 0.005  # seconds between two looks at a log
MICROSECONDS = 1e-6
PHASES = ("commit", "fetch", "sum", "take")
Line = dict[str, Any]


def tell(line: str) -> None:
    """For whoever waits; the tables are the answer."""
    print(line, file=sys.stderr, flush=True)


def now() -> float:
    """The clock that all logs of this machine share, in seconds."""
    return time.monotonic_ns() / 1e9


class Swarm:
    """The processes of one job, and what they have told."""

    def __init__(self, job: AveragingJob, folder: Path) -> None:
        self.job, self._folder = job, folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        job.write(folder)

    def __enter__(self) -> Self:
        for role in (COORDINATOR, TRAINER, *self.job.peers):
            self.start(role)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()

    def start(self, role: str) -> None:
        """Start one, for the first time or again on what it left."""
        command = ["-m", "tests.benchmarks.averaging_process", role, str(self._folder)]
        with (self._folder / "log" / f"{role}.stderr").open("ab") as errors:
            self.processes[role] = subprocess.Popen([sys.executable, *command], stderr=errors)

    def kill(self, role: str) -> float:
        """SIGKILL; returns when."""
        at = now()
        self.processes[role].kill()
        self.processes[role].wait()
        return at

    def lines(self, role: str, event: str) -> Iterator[Line]:
        """What a process has told of `event`, whole lines only."""
        path = self._folder / "log" / f"{role}.jsonl"
        for text in path.read_text().splitlines(keepends=True) if path.exists() else ():
            if text.endswith("\n") and (line := json.loads(text))["event"] == event:
                yield line

    def wait(self, what: str, is_so: Callable[[], bool]) -> None:
        """Wait until `is_so`; fails when a process has ended, or nothing happens."""
        ends = now() + PATIENCE
        while not is_so():
            for role, process in self.processes.items():
                if process.poll() not in (None, 0):
                    errors = (self._folder / "log" / f"{role}.stderr").read_text()[-2000:]
                    raise RuntimeError(f"{role} ended with {process.returncode}: {errors}")
            if now() > ends:
                raise TimeoutError(f"waited {PATIENCE} seconds for {what}")
            time.sleep(LOOK_EVERY)

    def times(self, role: str, event: str, step: int) -> list[float]:
        """When a process told of `event` in `step`."""
        found = self.lines(role, event)
        return [line["mono"] * MICROSECONDS for line in found if line["step"] == step]

    def complete_at(self, step: int, peers: Sequence[str]) -> float | None:
        """When the last of these peers had applied the averages of `step`; None while one has not.

        One that was restarted may have applied it again: the first time counts.
        """
        applied = [self.times(peer, "seal_applied", step) for peer in peers]
        return max(min(times) for times in applied) if all(applied) else None

    def closed(self) -> int:
        """The last step with a StepClose."""
        return max((line["step"] for line in self.lines(COORDINATOR, "step_closed")), default=0)

    def phases(self, step: int) -> dict[str, float]:
        """How long each part of an undisturbed exchange took."""
        marks = [min(self.times(COORDINATOR, "step_closed", step))]
        marks.append(max(self.times(COORDINATOR, "grad_commit_stored", step)))
        marks.append(max(self.times(COORDINATOR, "average_set_stored", step)))
        marks.append(max(self.times(COORDINATOR, "seal_stored", step)))
        end = self.complete_at(step, self.job.peers)
        assert end is not None  # asked of complete exchanges only
        spans = zip(marks, [*marks[1:], end], strict=True)
        return {name: b - a for name, (a, b) in zip(PHASES, spans, strict=True)}


# ------------------------------------------------------------------------------------------- gloo


def gloo_rank(rank: int, num_peers: int, num_elements: int, meeting: str) -> None:
    """All-reduce once for each line of standard input, and say how long it took."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=num_peers
    )
    vector = torch.ones(num_elements)
    torch.distributed.barrier()
    print("ready", flush=True)
    for _ in sys.stdin:
        torch.distributed.barrier()
        began = time.perf_counter()
        torch.distributed.all_reduce(vector)
        torch.distributed.barrier()
        print(time.perf_counter() - began, flush=True)
        vector.fill_(1.0)
    torch.distributed.destroy_process_group()


def all_reduces(num_peers: int, num_elements: int, rounds: int, folder: Path) -> list[float]:
    """Seconds of each of `rounds` all-reduces; one more before them warms up."""
    command = [sys.executable, "-m", "tests.benchmarks.averaging", "--gloo"]
    about = [str(num_peers), str(num_elements), str(folder / f"gloo-{time.monotonic_ns()}")]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), *about],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # it tells of every connection
            text=True,
        )
        for rank in range(num_peers)
    ]
    for rank in ranks:  # all of them before the first is waited for: they wait for each other
        assert rank.stdin is not None
        rank.stdin.write("go\n" * (rounds + 1))
        rank.stdin.close()
        rank.stdin = None
    answers = [rank.communicate(timeout=PATIENCE)[0].split() for rank in ranks]
    assert all(answer[0] == "ready" for answer in answers)
    return [max(map(float, times)) for times in zip(*(a[2:] for a in answers), strict=True)]


# ---------------------------------------------------------------------------------------- measure


@contextmanager
def swarm_of(
    num_peers: int, codec: GradientCodecName, num_steps: int, options: argparse.Namespace
) -> Iterator[Swarm]:
    """A job in a folder of its own, gone at the end."""
    job = AveragingJob(num_peers, options.elements, num_steps, codec)
    where = tempfile.TemporaryDirectory(dir=options.folder)
    with where as folder, Swarm(job, Path(folder)) as swarm:
        yield swarm


def measure(num_peers: int, options: argparse.Namespace) -> Iterator[Mapping[str, object]]:
    """Undisturbed exchanges, a row a codec; the first makes sessions and does not count."""
    megabytes = options.elements * 4 / 1e6
    with tempfile.TemporaryDirectory() as meeting:
        gloo = all_reduces(num_peers, options.elements, options.rounds, Path(meeting))
        rows = {codec: _exchanges(num_peers, codec, options) for codec in options.codecs}
        gloo += all_reduces(num_peers, options.elements, options.rounds, Path(meeting))
    usual = statistics.median(gloo)
    for codec, phases in rows.items():
        seconds = [sum(each.values()) for each in phases]
        yield {
            "peers": num_peers,
            "codec": codec,
            "complete": f"{len(phases)} of {options.rounds}",
            "seconds": _spread(seconds),
            "MB/s": _spread([megabytes / each for each in seconds]),
            "gloo MB/s": _spread([megabytes / each for each in gloo]),
            "ratio": _spread([usual / each for each in seconds]),
        } | {name: _spread([each[name] for each in phases]) for name in PHASES}


def _exchanges(
    num_peers: int, codec: GradientCodecName, options: argparse.Namespace
) -> list[dict[str, float]]:
    last = 1 + options.rounds
    with swarm_of(num_peers, codec, last, options) as swarm:
        peers = swarm.job.peers
        swarm.wait(f"step {last}", lambda: swarm.complete_at(last, peers) is not None)
        found = [swarm.phases(step) for step in range(2, last + 1)]
    tell(f"{num_peers} peers, {codec}: {[round(sum(each.values()), 2) for each in found]}")
    return found


def measure_kills(options: argparse.Namespace) -> Iterator[Mapping[str, object]]:
    """One peer killed at a drawn moment of an exchange, again and again, and started anew."""
    draw = random.Random(SEED)
    with swarm_of(KILLED_AMONG, "none", 250, options) as swarm:
        peers = swarm.job.peers
        swarm.wait("the first steps", lambda: swarm.complete_at(4, peers) is not None)
        usual = statistics.median(sum(swarm.phases(step).values()) for step in (2, 3, 4))
        for _ in range(options.kills):
            victim, moment = draw.choice(peers), draw.uniform(0.05, 0.85) * usual
            row = _kill(swarm, victim, moment)
            tell(str(row))
            yield row | {"usual": round(usual, 3)}


def _kill(swarm: Swarm, victim: str, moment: float) -> dict[str, object]:
    before = swarm.closed()
    swarm.wait("the next exchange", lambda: swarm.closed() > before)
    step = swarm.closed()
    began = min(swarm.times(COORDINATOR, "step_closed", step))
    time.sleep(max(0.0, began + moment - now()))
    killed_at = swarm.kill(victim)
    del swarm.processes[victim]
    others = [peer for peer in swarm.job.peers if peer != victim]
    landed = swarm.complete_at(step, swarm.job.peers)
    assert landed is None or landed > killed_at, "the exchange was over before the kill"

    def complete() -> float | None:
        ends = (swarm.complete_at(each, others) for each in range(step, swarm.closed() + 1))
        return next((end for end in ends if end is not None and end > killed_at), None)

    swarm.wait("the next complete exchange", lambda: complete() is not None)
    end = complete()
    assert end is not None
    lost = [t for t in _all_times(swarm, COORDINATOR, "peer_lost") if t > killed_at]
    swarm.start(victim)
    swarm.wait(f"{victim} to be back", lambda: _is_back(swarm, victim, killed_at))
    return {
        "killed": victim,
        "into the exchange": round(killed_at - began, 3),
        "noticed after": round(min(lost) - killed_at, 3) if lost else None,
        "next complete after": round(end - killed_at, 3),
    }


def _all_times(swarm: Swarm, role: str, event: str) -> list[float]:
    return [line["mono"] * MICROSECONDS for line in swarm.lines(role, event)]


def _is_back(swarm: Swarm, victim: str, killed_at: float) -> bool:
    """Whether it has taken part in a whole step again."""
    own = swarm.lines(victim, "grad_commit_stored")
    steps = [line["step"] for line in own if line["mono"] * MICROSECONDS > killed_at]
    return any(swarm.complete_at(step, swarm.job.peers) is not None for step in steps)


# ------------------------------------------------------------------------------------------ print


def _spread(values: Sequence[float]) -> str:
    """Median and range."""
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def print_table(rows: Sequence[Mapping[str, object]]) -> None:
    """As Markdown."""
    if rows:
        print("| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
    for row in rows:
        print("| " + " | ".join(str(value) for value in row.values()) + " |")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=10_000_000)
    parser.add_argument("--peers", type=int, nargs="*", default=[2, 4, 8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument(
        "--codecs", nargs="+", default=["none", "bfloat16"], choices=get_args(GradientCodecName)
    )
    parser.add_argument(
        "--folder", type=Path, help="where peers keep files; a temporary one if not"
    )
    parser.add_argument("--gloo", nargs=4, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    options = _options()
    if options.gloo:
        rank, num_peers, num_elements, meeting = options.gloo
        gloo_rank(int(rank), int(num_peers), int(num_elements), meeting)
        return
    exchanges = [row for num_peers in options.peers for row in measure(num_peers, options)]
    kills = list(measure_kills(options)) if options.kills else []
    print_table(exchanges)
    print_table(kills)
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True
    )
    about = {
        "elements": options.elements,
        "seed": SEED,
        "commit": commit.stdout.strip(),
        "torch": torch.__version__,
        "grpcio": version("grpcio"),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }
    print(json.dumps({**about, "exchanges": exchanges, "kills": kills}))


if __name__ == "__main__":
    main()
