"""How fast do peers average a gradient, beside gloo; and how soon again after one is killed?

A real job in real processes over the real transport: coordinator and peers, whose items cost
nothing (`averaging_process`). An exchange is a round from its first claim to the moment when all
peers have applied its averages: parts bound, fetched, checked, summed, sealed, fetched, each on
disk before it is spoken of. Gloo all-reduces as many floats between as many processes before and
after, in memory, unencrypted and unchecked: what it has on us is what all that costs. `memory` is
the most that a peer took, its own gradient in it, over the bytes of a gradient.
For kills one of four peers gets SIGKILL at a drawn moment of an exchange; the next complete one is
that after which all others have applied the same step.

`python -m bench.averaging [--elements N] [--peers 2 4 8] [--rounds N] [--kills N] [--codecs none
bfloat16] [--folder DIR]` prints tables and a line of JSON. Seconds, MB = 1e6 bytes.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import get_args

import torch

from bench.averaging_process import SEED, AveragingJob
from bench.measuring import (
    PATIENCE,
    Processes,
    about,
    limit,
    markdown,
    memory_of,
    now,
    parsed,
    parser_of,
    tell,
)
from contracts.terms.messages import GradientCodecName
from tests.support.swarm_job import COORDINATOR

KILLED_AMONG = 4  # peers of an exchange in which one is killed
PHASES = ("commit", "fetch", "sum", "take")


class Swarm(Processes):
    """The processes of one job, and what they have told."""

    def __init__(self, job: AveragingJob, folder: Path) -> None:
        super().__init__("bench.averaging_process", folder)
        self.job = job
        job.write(folder)
        for role in (COORDINATOR, *job.peers):
            self.start(role)

    def times(self, role: str, event: str, step: int) -> list[float]:
        """When a process told of `event` in `step`."""
        return [line["seconds"] for line in self.lines(role, event) if line["step"] == step]

    def complete_at(self, step: int, peers: Sequence[str]) -> float | None:
        """When the last of these peers had applied the averages of `step`; None while one has not.

        One that was restarted may have applied it again: the first time counts.
        """
        applied = [self.times(peer, "seal_applied", step) for peer in peers]
        return max(min(times) for times in applied) if all(applied) else None

    def closed(self) -> int:
        """The last round with a claim."""
        return max((line["step"] for line in self.lines(COORDINATOR, "claim_stored")), default=0)

    def memory(self) -> float:
        """The most that a peer has taken since it began, in gradients."""
        pids = {peer: self.running[peer].pid for peer in self.job.peers}
        taken = (
            memory_of(pid, "status", "VmHWM") - self.lines(peer, "memory")[0]["resident"]
            for peer, pid in pids.items()
        )
        return max(taken) / (4 * self.job.num_elements)

    def phases(self, step: int) -> dict[str, float]:
        """How long each part of an undisturbed exchange took."""
        marks = [min(self.times(COORDINATOR, "claim_stored", step))]
        marks.append(max(self.times(COORDINATOR, "claim_stored", step)))
        marks.append(max(self.times(COORDINATOR, "round_closed", step)))
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
    command = [sys.executable, "-m", "bench.averaging", "--gloo"]
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
    answers = [rank.communicate(timeout=60 * PATIENCE)[0].split() for rank in ranks]
    assert all(answer[0] == "ready" for answer in answers)
    return [max(map(float, times)) for times in zip(*(a[2:] for a in answers), strict=True)]


# ---------------------------------------------------------------------------------------- measure


@contextmanager
def swarm_of(
    num_peers: int, codec: GradientCodecName, num_steps: int, options: argparse.Namespace
) -> Iterator[Swarm]:
    """A job in a folder of its own, gone at the end."""
    job = AveragingJob(num_peers, options.elements, num_steps, codec)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        swarm = Swarm(job, Path(folder))
        try:
            yield swarm
        finally:
            swarm.kill()


def measure(num_peers: int, options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Undisturbed exchanges, a row a codec; the first makes sessions and does not count."""
    megabytes = options.elements * 4 / 1e6
    with tempfile.TemporaryDirectory() as meeting:
        gloo = all_reduces(num_peers, options.elements, options.rounds, Path(meeting))
        rows = {codec: _exchanges(num_peers, codec, options) for codec in options.codecs}
        gloo += all_reduces(num_peers, options.elements, options.rounds, Path(meeting))
    usual = statistics.median(gloo)
    for codec, (phases, memory) in rows.items():
        seconds = [sum(each.values()) for each in phases]
        yield {
            "peers": num_peers,
            "codec": codec,
            "complete": f"{len(phases)} of {options.rounds}",
            "seconds": _spread(seconds),
            "MB/s": _spread([megabytes / each for each in seconds]),
            "gloo MB/s": _spread([megabytes / each for each in gloo]),
            "ratio": _spread([usual / each for each in seconds]),
            "memory": f"{memory:.3g}",
        } | {name: _spread([each[name] for each in phases]) for name in PHASES}


def _exchanges(
    num_peers: int, codec: GradientCodecName, options: argparse.Namespace
) -> tuple[list[dict[str, float]], float]:
    last = 1 + options.rounds
    with swarm_of(num_peers, codec, last, options) as swarm:
        peers = swarm.job.peers
        swarm.wait(f"step {last}", lambda: swarm.complete_at(last, peers) is not None)
        found = [swarm.phases(step) for step in range(2, last + 1)]
        memory = swarm.memory()
    tell(f"{num_peers} peers, {codec}: {[round(sum(each.values()), 2) for each in found]}")
    return found, memory


def measure_kills(options: argparse.Namespace) -> Iterator[dict[str, object]]:
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
    began = min(swarm.times(COORDINATOR, "claim_stored", step))
    time.sleep(max(0.0, began + moment - now()))
    killed_at = now()
    swarm.kill(victim)
    others = [peer for peer in swarm.job.peers if peer != victim]
    landed = swarm.complete_at(step, swarm.job.peers)
    assert landed is None or landed > killed_at, "the exchange was over before the kill"

    def complete() -> float | None:
        ends = (swarm.complete_at(each, others) for each in range(step, swarm.closed() + 1))
        return next((end for end in ends if end is not None and end > killed_at), None)

    swarm.wait("the next complete exchange", lambda: complete() is not None)
    end = complete()
    assert end is not None
    lost = [each["seconds"] for each in swarm.lines(COORDINATOR, "peer_lost", since=killed_at)]
    swarm.start(victim)
    swarm.wait(f"{victim} to be back", lambda: _is_back(swarm, victim, killed_at))
    return {
        "killed": victim,
        "into the exchange": round(killed_at - began, 3),
        "noticed after": round(min(lost) - killed_at, 3) if lost else None,
        "next complete after": round(end - killed_at, 3),
    }


def _is_back(swarm: Swarm, victim: str, killed_at: float) -> bool:
    """Whether it has taken part in a whole step again."""
    own = swarm.lines(victim, "claim_stored", since=killed_at)
    steps = [line["step"] for line in own]
    return any(swarm.complete_at(step, swarm.job.peers) is not None for step in steps)


def _spread(values: Sequence[float]) -> str:
    """Median and range."""
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--elements", type=int, default=10_000_000)
    parser.add_argument("--peers", type=int, nargs="*", default=[2, 4, 8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument(
        "--codecs", nargs="+", default=["none", "bfloat16"], choices=get_args(GradientCodecName)
    )
    parser.add_argument("--folder", type=Path, help="where peers keep files, if not temporary")
    parser.add_argument("--gloo", nargs=4, help=argparse.SUPPRESS)
    options = parsed(
        parser, minutes=60, elements=2_000_000, peers=[2], rounds=1, kills=1, codecs=["bfloat16"]
    )
    if options.gloo:
        rank, num_peers, num_elements, meeting = options.gloo
        gloo_rank(int(rank), int(num_peers), int(num_elements), meeting)
        return
    with limit(options.minutes, "averaging"):
        exchanges = [row for num_peers in options.peers for row in measure(num_peers, options)]
        kills = list(measure_kills(options)) if options.kills else []
    for rows in filter(None, (exchanges, kills)):
        print(markdown(rows))
    told = about(elements=options.elements, seed=SEED, grpcio=version("grpcio"))
    print(json.dumps(told | {"exchanges": exchanges, "kills": kills}))


if __name__ == "__main__":
    main()
