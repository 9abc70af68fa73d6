"""What does checking cost: wall time, compute and traffic, and what of it beside the replays?

`python -m tests.benchmarks.audit_overhead [--rounds N] [--steps N] [--quick]` prints tables and one
line of JSON with machine, versions, commit and seed. Three jobs of one model live for the whole
run, each with a coordinator, a trainer and two stages of three peers with one thread each, as
processes of their own (`audit_overhead_process`), and take turns:

    off      nobody checks
    floor    peer-steps are drawn at the floor of 5 %
    half     at one half

Both checked ones draw a tenth of the sums; nobody from outside repeats reports. The trainer of a
job stops itself by a failpoint at the beginning of a step. A turn begins when it may go on; it ends
when it stands again and the processes have come to rest, so every audit that is due is in it.
Nothing else should use the cores. Coins are made up and there at once: no job waits for a chain (a
real one does not either, while four of its steps last longer than a coin takes to count).

Measured in the run: time from seal to seal, and of whole turns, audits that lag behind included;
CPU time of the processes, from /proc; bytes that they wrote to each other; CPU time of replays in
the threads that compute, as the peers' lines tell it (`replayed`). Beyond the replays is what
the peers' compute rises by, less that: comparison, fetching and serving, weights on disk, draws and
reports. What hashing, signing, retention and comparison take is timed after it, call by call
(`audit_overhead_calls`). Coins follow from the seed; which peer has which stage does not.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from contracts.terms.messages import MILLION
from tests.benchmarks.audit_overhead_calls import Call, single_calls
from tests.benchmarks.audit_overhead_process import PEERS, ROLES, STAGES, UNITS, OverheadJob
from tests.benchmarks.audit_overhead_rounds import Round, Turn, costs, together, used
from tests.benchmarks.measuring import cpu_seconds
from tests.benchmarks.stage_throughput import commit
from tests.support.swarm_job import COORDINATOR, TRAINER
from training.data.corpus import builtin_files, read_corpus, shard_corpus
from training.stages.device_class import device_class

ROOT = Path(__file__).resolve().parents[2]
PLAIN = "off"
SETTINGS = {PLAIN: 0, "floor": MILLION // 20, "half": MILLION // 2}
FIRST = 2  # step in which the first turn begins: in the one before everybody gets ready
CORPUS_BYTES = 1_000_000
PATIENCE = 300.0  # seconds for anything to happen at all
LOOK_EVERY = 0.1
REST, REST_LOOKS = 0.5, 2  # seconds between two looks at CPU times; so many without work are rest
RESTING_CPU = 0.1  # of one core: what processes that wait use, and less than any that computes
WORK = ("seal_applied", "replayed", "audit_handed_in")  # lines that end a piece of work of a peer
MICROSECONDS = 1e-6
REPLAYED = ("weights_us", "passes_us", "gradient_us", "claims_us")

Line = dict[str, Any]


def tell(line: str) -> None:
    """For whoever waits; the tables are the answer."""
    print(line, file=sys.stderr, flush=True)


def now() -> float:
    """The clock that all logs of this machine share, in seconds."""
    return time.monotonic_ns() / 1e9


class Log:
    """What a process has told; a look reads what is new."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0
        self._lines: list[Line] = []

    def lines(self) -> list[Line]:
        """All whole lines so far."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._read)
                for text in file:
                    if not text.endswith(b"\n"):
                        break
                    self._read += len(text)
                    self._lines.append(json.loads(text))
        return self._lines

    def sent_bytes(self) -> int:
        """What the process has written to others, as it last said."""
        return max((line.get("bytes_out", 0) for line in self.lines()), default=0)


@dataclass(frozen=True)
class Used:
    """What the processes of a job have used since they began."""

    peer_cpu: float
    other_cpu: float
    sent_bytes: int


class RunningJob:
    """The processes of one job, whose trainer stops where a turn begins."""

    def __init__(self, job: OverheadJob, folder: Path, begins: Sequence[int]) -> None:
        self._folder, self._begins = folder, begins
        self._logs = {role: Log(folder / "log" / f"{role}.jsonl") for role in ROLES}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        job.write(folder)

    def start(self) -> None:
        """Start them all."""
        points = ",".join(f"stop:step_begun:{step}" for step in self._begins)
        for role in ROLES:
            environment = os.environ | {"TALLYSTICK_FAILPOINT": points if role == TRAINER else ""}
            words = ("-m", "tests.benchmarks.audit_overhead_process", role, str(self._folder))
            with (self._folder / f"{role}.stderr").open("ab") as errors:
                self._processes[role] = subprocess.Popen(
                    (sys.executable, *words), stderr=errors, cwd=ROOT, env=environment
                )

    def kill(self) -> None:
        """End them all."""
        for process in self._processes.values():
            process.kill()
            process.wait()

    # ------------------------------------------------------------------------------------ a turn

    def turn(self, begins: int, timed_steps: int) -> Turn:
        """Let the trainer go on from step `begins`, where it stands, until all is done."""
        last = begins + timed_steps
        before, began = self._used(), now()
        self._processes[TRAINER].send_signal(signal.SIGCONT)
        self.stands_at(last + 1)
        self._rests()
        after, replays = self._used(), self._told("replayed", since=began)
        self._need_agreement(began)
        return Turn(
            steps=timed_steps + 1,
            units=(timed_steps + 1) * UNITS * STAGES,
            timed_steps=timed_steps,
            timed_seconds=self._sealed_at(last) - self._sealed_at(begins),
            all_seconds=self._worked_until() - began,
            peer_cpu=after.peer_cpu - before.peer_cpu,
            other_cpu=after.other_cpu - before.other_cpu,
            replay_cpu=sum(line["cpu_us"] for line in replays) * MICROSECONDS,
            pass_cpu=sum(line["passes_us"] for line in replays) * MICROSECONDS,
            replayed_units=sum(line["units"] for line in replays),
            sent_bytes=after.sent_bytes - before.sent_bytes,
        )

    def stands_at(self, step: int) -> None:
        """Wait until the trainer stands at the beginning of a step."""
        log = self._logs[TRAINER]
        self._wait(
            f"the trainer to stand at step {step}",
            lambda: any(
                line["event"] == "failpoint" and line["step"] == step for line in log.lines()
            ),
        )

    def _rests(self) -> None:
        quiet, ends, before = 0, now() + PATIENCE, self._cpu(ROLES)
        while quiet < REST_LOOKS:
            self._need_all_alive()
            if now() > ends:
                raise TimeoutError(f"{self._folder.name}: its processes do not come to rest")
            time.sleep(REST)
            after = self._cpu(ROLES)
            quiet = quiet + 1 if after - before < RESTING_CPU * REST else 0
            before = after

    def _used(self) -> Used:
        others = [role for role in ROLES if role not in PEERS]
        sent = sum(log.sent_bytes() for log in self._logs.values())
        return Used(self._cpu(PEERS), self._cpu(others), sent)

    def _cpu(self, roles: Iterable[str]) -> float:
        return sum(cpu_seconds(self._processes[role].pid, children=True) for role in roles)

    def _wait(self, what: str, is_so: Callable[[], bool]) -> None:
        ends = now() + PATIENCE
        while not is_so():
            self._need_all_alive()
            if now() > ends:
                raise TimeoutError(f"{self._folder.name}: waited {PATIENCE} seconds for {what}")
            time.sleep(LOOK_EVERY)

    def _need_all_alive(self) -> None:
        for role, process in self._processes.items():
            if process.poll() is not None:
                errors = (self._folder / f"{role}.stderr").read_text()[-2000:]
                raise RuntimeError(f"{role} ended with {process.returncode}: {errors}")

    # ------------------------------------------------------------------------- what they have told

    def _told(self, *events: str, since: float = 0.0) -> list[Line]:
        return [
            line
            for role in PEERS
            for line in self._logs[role].lines()
            if line["event"] in events and line["mono"] * MICROSECONDS >= since
        ]

    def _sealed_at(self, step: int) -> float:
        lines = self._logs[COORDINATOR].lines()
        names = ((line["event"], line.get("step"), line) for line in lines)
        sealed = next(line for *name, line in names if name == ["seal_stored", step])
        return float(sealed["mono"]) * MICROSECONDS

    def _worked_until(self) -> float:
        return max(float(line["mono"]) for line in self._told(*WORK)) * MICROSECONDS

    def _need_agreement(self, since: float) -> None:
        """Everybody is honest here: another verdict would begin a case, which is no overhead."""
        for line in self._told("audited", since=since):
            if line["verdict"] != "match":
                raise RuntimeError(f"an honest run with a verdict: {line}")

    def told_of_replays(self) -> dict[str, float]:
        """Milliseconds of CPU that a replay took, by what for; how many audits, and waits."""
        replays, audits = self._told("replayed"), self._told("audited")
        mean = {
            name.removesuffix("_us") + ", CPU ms": round(
                sum(line[name] for line in replays) / max(len(replays), 1) / 1000, 2
            )
            for name in REPLAYED
        }
        kinds = Counter(line["kind"] for line in audits)
        waits = len(self._told("audit_waits"))
        counted = {f"audits of {kind}": number for kind, number in kinds.items()}
        counted["audits that had to wait"] = waits
        return {"replays": len(replays), **mean, **counted}


@contextmanager
def running_jobs(
    folder: Path, seed: int, rounds: int, steps: int, *, quick: bool
) -> Iterator[tuple[dict[str, RunningJob], OverheadJob, list[int]]]:
    """One job a setting, each at the beginning of its first turn; and where turns begin."""
    begins = [FIRST + number * (steps + 1) for number in range(rounds + 1)]
    corpus = shard_corpus(read_corpus(builtin_files(), max_bytes=CORPUS_BYTES))
    with ExitStack() as started:
        found: dict[str, RunningJob] = {}
        for name, rate in SETTINGS.items():
            job = OverheadJob(
                audit_rate=rate,
                num_steps=begins[-1],
                checkpoint_every=steps + 1,
                seed=seed,
                quick=quick,
                device_class=device_class(torch.device("cpu")),
                manifest=corpus.manifest.digest().hex(),
            )
            corpus.write(folder / name / "blobs")
            found[name] = RunningJob(job, folder / name, begins)
            started.callback(found[name].kill)
            found[name].start()
            found[name].stands_at(FIRST)
            tell(f"{name}: stands at step {FIRST}")
        yield found, job, begins


def take_turns(
    jobs: dict[str, RunningJob], begins: Sequence[int], steps: int, ends: float
) -> list[dict[str, Turn]]:
    """Rounds in which each job has one turn, none first twice in a row; no round begins late."""
    rounds: list[dict[str, Turn]] = []
    for number, begin in enumerate(begins[:-1]):
        if rounds and now() > ends:
            tell("no time is left for another round")
            break
        first = number % len(jobs)
        order = [*jobs, *jobs][first : first + len(jobs)]
        rounds.append({})
        for name in order:
            turn = rounds[-1][name] = jobs[name].turn(begin, steps)
            tell(
                f"round {number + 1}, {name}: "
                f"{turn.timed_seconds / turn.timed_steps:.2f} s a step, "
                f"{turn.peer_cpu:.2f} CPU s, of that replays {turn.replay_cpu:.2f}; "
                f"{turn.replayed_units} of {turn.units} units replayed"
            )
    return rounds


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Let the three take turns; then time single calls."""
    ends = now() + 60 * options.minutes
    with tempfile.TemporaryDirectory(prefix="tallystick-overhead-") as temporary:
        folder = Path(temporary)
        with running_jobs(
            folder, options.seed, options.rounds, options.steps, quick=options.quick
        ) as (jobs, checked, begins):
            rounds = take_turns(jobs, begins, options.steps, ends)
            told = {name: job.told_of_replays() for name, job in jobs.items() if name != PLAIN}
        calls = single_calls(checked, folder / PLAIN / "blobs", folder / "calls")
    return {
        "used by a step": {name: used(rounds, name) for name in SETTINGS},
        "cost, %": {name: costs(rounds, name, PLAIN) for name in SETTINGS if name != PLAIN},
        "audits": told,
        "single calls": _beside_compute(calls, rounds),
        "rounds": len(rounds),
    }


def _beside_compute(calls: Iterable[Call], rounds: Sequence[Round]) -> dict[str, dict[str, Any]]:
    """CPU time of each call beside that of a peer-step which nobody checks."""
    plain = together([each[PLAIN] for each in rounds])
    peer_step = 1000 * plain.peer_cpu / plain.steps / len(PEERS)
    return {
        each.what: {
            "for": each.paid,
            "ms": each.milliseconds,
            "CPU ms": each.cpu_milliseconds,
            "% of a peer-step": round(100 * each.cpu_milliseconds / peer_step, 2),
        }
        for each in calls
    }


def show(result: dict[str, Any]) -> None:
    """Print tables, and a line of JSON."""
    for title, table in result.items():
        if not isinstance(table, dict):
            print(f"{title:28} {table}")
            continue
        print(f"\n{title}")
        for name, row in table.items():
            if all(isinstance(value, dict) for value in row.values()):
                print(f"  {name}")
                for kind, cells in row.items():
                    print(f"    {kind:24} {_cells(cells)}")
            else:
                print(f"  {name:34} {_cells(row)}")
    print(json.dumps(result))


def _cells(row: dict[str, Any]) -> str:
    return "  ".join(f"{name} {value}" for name, value in row.items())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7, help="turns of each job")
    parser.add_argument("--steps", type=int, default=4, help="timed steps of a turn")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=6.5, help="no round begins after them")
    parser.add_argument("--quick", action="store_true", help="a tiny model: does it run at all?")
    options = parser.parse_args()
    result = measure(options) | {
        "steps": options.steps,
        "seed": options.seed,
        "commit": commit(),
        "machine": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    show(result)


if __name__ == "__main__":
    main()
