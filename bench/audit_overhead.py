"""What does checking cost: wall time, compute and traffic, and what of it beside the replays?

`python -m bench.audit_overhead [--rounds N] [--steps N] [--quick]` prints tables and one line of
JSON. Three jobs of one model live for the whole run, each with a coordinator and two
stages of three peers with one thread each, as processes of their own (`audit_overhead_process`),
and take turns:

    off      nobody checks
    floor    peer-steps are drawn at the floor of 5 %
    half     at one half

Both checked ones draw a tenth of the sums; nobody from outside repeats reports. The coordinator of
a job stops itself by a failpoint at the seal before a turn. A turn begins when it may go on; it
ends when it stands again and the processes have come to rest, so every audit that is due is in it.
Nothing else should use the cores. Beacons are made up and there at once: no job waits for a chain
(a real one does not either, while four of its steps last longer than a beacon takes to count).

The turns of one round follow each other, so a busy neighbour slows all of them: each is compared
with the turn without checking of its own round. Few peer-steps are drawn in one turn at a low rate;
what all rounds come to together stands beside. Costs are in per cent of the same without checking:
time from seal to seal, and of whole turns, audits that lag behind included; CPU time of the
processes, from /proc; bytes that they wrote to each other; CPU time of replays in the threads that
compute, as the peers' lines tell it (`replayed`). Beyond the replays is what the peers' compute
rises by, less that: comparison, fetching and serving, weights on disk, draws and reports. Beacons
follow from the seed; which peer has which stage does not.
"""

import argparse
import json
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from bench.audit_overhead_process import PEERS, ROLES, STAGES, UNITS, OverheadJob
from bench.measuring import (
    MICROSECONDS,
    Line,
    Processes,
    about,
    cpu_seconds,
    limit,
    now,
    parsed,
    parser_of,
    spread,
    tell,
)
from contracts.terms.messages import MILLION
from tests.support.corpora import builtin_text, cut_corpus
from tests.support.swarm_job import COORDINATOR
from training.stages.exact import device_class

PLAIN = "off"
SETTINGS = {PLAIN: 0, "floor": MILLION // 20, "half": MILLION // 2}
FIRST = 2  # step in which the first turn begins: in the one before everybody gets ready
CORPUS_BYTES = 1_000_000
REST, REST_LOOKS = 0.5, 2  # seconds between two looks at CPU times; so many without work are rest
RESTING_CPU = 0.1  # of one core: what processes that wait use, and less than any that computes
WORK = ("seal_applied", "replayed", "audit_handed_in")  # lines that end a piece of work of a peer


# --------------------------------------------------------------------------------------- figures


@dataclass(frozen=True)
class Turn:
    """What one turn of one job used: seconds of wall time and of CPU, bytes."""

    steps: int
    units: int  # sealed, each stage counted
    timed_steps: int  # all but the first, which begins while everybody wakes up
    timed_seconds: float  # from the seal of the first step to that of the last
    all_seconds: float  # from its beginning to the end of its last update or audit
    peer_cpu: float
    other_cpu: float  # of the coordinator
    replay_cpu: float  # part of `peer_cpu`: what replays took of the threads that compute
    replayed_units: int
    sent_bytes: int


def together(turns: Sequence[Turn]) -> Turn:
    """All turns as one."""
    return Turn(*(sum(getattr(turn, each.name) for turn in turns) for each in fields(Turn)))


def cost(turn: Turn, plain: Turn) -> dict[str, float]:
    """What `turn` cost more than `plain`, which nobody checked, in per cent of that."""

    def more(name: str, per: str) -> float:
        checked, unchecked = (getattr(each, name) / getattr(each, per) for each in (turn, plain))
        return float(100 * (checked / unchecked - 1))

    compute = more("peer_cpu", "units")
    replays = 100 * turn.replay_cpu / turn.units * plain.units / plain.peer_cpu
    return {
        "wall": more("timed_seconds", "timed_steps"),
        "wall with audits": more("all_seconds", "steps"),
        "compute of peers": compute,
        "replays": replays,
        "beyond the replays": compute - replays,
        "coordinator": more("other_cpu", "steps"),
        "traffic": more("sent_bytes", "steps"),
        "units replayed": 100 * turn.replayed_units / turn.units,
    }


Round = Mapping[str, Turn]
"""By setting."""


def costs(rounds: Sequence[Round], setting: str) -> dict[str, dict[str, float]]:
    """By kind of cost: over the rounds median, least and most, and of all rounds together."""
    single = [cost(each[setting], each[PLAIN]) for each in rounds]
    whole = cost(*(together([each[name] for each in rounds]) for name in (setting, PLAIN)))
    return {
        name: spread([each[name] for each in single], 2) | {"together": round(value, 2)}
        for name, value in whole.items()
    }


# ------------------------------------------------------------------------------------------ jobs


class RunningJob(Processes):
    """The processes of one job, whose coordinator stops where a turn begins."""

    def __init__(self, job: OverheadJob, folder: Path, begins: Sequence[int]) -> None:
        super().__init__("bench.audit_overhead_process", folder)
        job.write(folder)
        points = ",".join(f"stop:seal_stored:{step - 1}" for step in begins)
        for role in ROLES:
            self.start(role, points if role == COORDINATOR else "")

    def turn(self, begins: int, timed_steps: int) -> Turn:
        """Let the coordinator go on from step `begins`, where it stands, until all is done."""
        last, others = begins + timed_steps, [role for role in ROLES if role not in PEERS]
        peer_cpu, other_cpu, sent = self._cpu(PEERS), self._cpu(others), self._sent_bytes()
        began = now()
        self.running[COORDINATOR].send_signal(signal.SIGCONT)
        self.stands_at(last + 1)
        self._rests()
        replays = self._told("replayed", since=began)
        self._need_agreement(began)
        return Turn(
            steps=timed_steps + 1,
            units=(timed_steps + 1) * UNITS * STAGES,
            timed_steps=timed_steps,
            timed_seconds=self._sealed_at(last) - self._sealed_at(begins),
            all_seconds=self._worked_until() - began,
            peer_cpu=self._cpu(PEERS) - peer_cpu,
            other_cpu=self._cpu(others) - other_cpu,
            replay_cpu=sum(line["cpu_us"] for line in replays) * MICROSECONDS,
            replayed_units=sum(line["items"] for line in replays),
            sent_bytes=self._sent_bytes() - sent,
        )

    def stands_at(self, step: int) -> None:
        """Wait until the coordinator stands at the beginning of a step."""

        def does() -> bool:
            return any(line["step"] == step - 1 for line in self.lines(COORDINATOR, "failpoint"))

        self.wait(f"the coordinator to stand at step {step}", does)

    def _rests(self) -> None:
        quiet, before = 0, self._cpu(ROLES)

        def is_at_rest() -> bool:
            nonlocal quiet, before
            time.sleep(REST)
            after = self._cpu(ROLES)
            quiet = quiet + 1 if after - before < RESTING_CPU * REST else 0
            before = after
            return quiet >= REST_LOOKS

        self.wait("its processes to come to rest", is_at_rest)

    def _cpu(self, roles: Iterable[str]) -> float:
        return sum(cpu_seconds(self.running[role].pid, children=True) for role in roles)

    def _sent_bytes(self) -> int:
        """What all processes have written to others, as they last said."""
        lines = (self.lines(role) for role in ROLES)
        return sum(max((each.get("bytes_out", 0) for each in told), default=0) for told in lines)

    def _told(self, *events: str, since: float = 0.0) -> list[Line]:
        return [line for role in PEERS for line in self.lines(role, *events, since=since)]

    def _sealed_at(self, step: int) -> float:
        sealed = self.lines(COORDINATOR, "seal_stored")
        return float(next(line["seconds"] for line in sealed if line["step"] == step))

    def _worked_until(self) -> float:
        return max(float(line["seconds"]) for line in self._told(*WORK))

    def _need_agreement(self, since: float) -> None:
        """Everybody is honest here: another verdict would begin a case, which is no overhead."""
        for line in self._told("audited", since=since):
            if line["verdict"] != "match":
                raise RuntimeError(f"an honest run with a verdict: {line}")

    def audits(self) -> dict[str, int]:
        """How many there were, by kind, and how many had to wait."""
        kinds = Counter(line["kind"] for line in self._told("audited"))
        return {**kinds, "had to wait": len(self._told("audit_waits"))}


@contextmanager
def running_jobs(
    folder: Path, options: argparse.Namespace, begins: Sequence[int]
) -> Iterator[dict[str, RunningJob]]:
    """One job a setting, each at the beginning of its first turn."""
    corpus = cut_corpus(builtin_text(CORPUS_BYTES), shard_bytes=32_768)
    with ExitStack() as started:
        found: dict[str, RunningJob] = {}
        for name, rate in SETTINGS.items():
            job = OverheadJob(
                audit_rate=rate,
                num_steps=begins[-1],
                checkpoint_every=options.steps + 1,
                seed=options.seed,
                quick=options.quick,
                device_class=device_class(torch.device("cpu")),
                manifest=corpus.manifest.digest().hex(),
            )
            corpus.write(folder / name / "blobs")
            found[name] = RunningJob(job, folder / name, begins)
            started.callback(found[name].kill)
            found[name].stands_at(FIRST)
        yield found


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Let the three take turns, none first twice in a row."""
    begins = [FIRST + number * (options.steps + 1) for number in range(options.rounds + 1)]
    rounds: list[dict[str, Turn]] = []
    with (
        tempfile.TemporaryDirectory(prefix="tallystick-overhead-") as folder,
        running_jobs(Path(folder), options, begins) as jobs,
    ):
        for number, begin in enumerate(begins[:-1]):
            first = number % len(jobs)
            rounds.append({})
            for name in [*jobs, *jobs][first : first + len(jobs)]:
                turn = rounds[-1][name] = jobs[name].turn(begin, options.steps)
                tell(f"round {number + 1}, {name}: {turn}")
        checked = [name for name in SETTINGS if name != PLAIN]
        return {
            "together": {n: asdict(together([each[n] for each in rounds])) for n in SETTINGS},
            "cost, %": {name: costs(rounds, name) for name in checked},
            "audits": {name: jobs[name].audits() for name in checked},
        }


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=6, help="turns of each job")
    parser.add_argument("--steps", type=int, default=4, help="timed steps of a turn")
    parser.add_argument("--seed", type=int, default=1)
    options = parsed(parser, minutes=60, rounds=1, steps=2)
    with limit(options.minutes, "audit_overhead"):
        result = measure(options)
    for setting, kinds in result["cost, %"].items():
        print(f"\ncost at {setting}, %")
        for kind, cells in kinds.items():
            print(f"  {kind:24} " + "  ".join(f"{name} {cells[name]}" for name in cells))
    asked = {"rounds": options.rounds, "steps": options.steps, "seed": options.seed}
    print(json.dumps(result | about(**asked)))


if __name__ == "__main__":
    main()
