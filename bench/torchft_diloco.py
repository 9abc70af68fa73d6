"""Local steps beside torchft's own DiLoCo: loss, time and bytes on equal data and schedules.

    pip install --no-deps torchft==0.2.0
    pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http
    unshare -rn sh -c 'ip link set lo up; python -m bench.torchft_diloco --seeds 1 2 3'

Model, rows, inner AdamW and schedule of `bench.local_steps`: four replicas with a thread each, 50
inner steps a round, outer SGD of rate 1 without momentum. Three runs a seed, one after another:

    torchft         `torchft.local_sgd.DiLoCo`: four replica groups of one process on gloo, fp32,
                    and a lighthouse; each replica keeps its AdamW moments between rounds
    ours none       a real job of strategy `local` without audits: a coordinator and four peers,
    ours seeded4    under gRPC with TLS, journals and seals; moments restart in each round

Printed are the loss on the job's 128 validation rows after the last round, and, of the rounds from
the second to the last but one: seconds, CPU seconds of all processes, and bytes that each replica
sends (all bytes on `lo` over four: in a network namespace of its own, as above, nothing else is
on it). "over torchft" is a relative perplexity, "ratio" ours over torchft at equal seed.
"""

import json
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench.local_steps import corpus
from bench.measuring import (
    Processes,
    about,
    cpu_seconds,
    limit,
    markdown,
    now,
    parsed,
    parser_of,
    tell,
)
from bench.torchft_diloco_process import APPLIED, INNER_STEPS, PEERS, REPLICAS, TorchftJob
from contracts.terms.messages import LOSS_SCALE, ShardCodecName
from tests.support.swarm_job import COORDINATOR

RUNS: Sequence[tuple[str, ShardCodecName]] = (
    ("torchft", "none"),
    ("ours", "none"),
    ("ours", "seeded4"),
)
COSTS = ("s", "CPU s", "MB")  # of a round; MB of a replica


@dataclass(frozen=True)
class Spent:
    """Up to some moment."""

    seconds: float
    cpu_seconds: float
    bytes: int


class Swarm(Processes):
    """The processes of one run."""

    def __init__(self, job: TorchftJob, folder: Path) -> None:
        super().__init__("bench.torchft_diloco_process", folder)
        job.write(folder)
        corpus().write(folder / "blobs")
        self.start(COORDINATOR)
        self.wait("an address", (folder / "address").exists)
        for peer in PEERS:
            self.start(peer)

    def after(self, round: int) -> Spent:
        """Wait for the end of a round at all replicas."""

        def is_applied() -> bool:
            lines = (self.lines(peer, *APPLIED) for peer in PEERS)
            return all(any(line["step"] >= round for line in each) for each in lines)

        self.wait(f"round {round}", is_applied)
        cpu = sum(cpu_seconds(process.pid) for process in self.running.values())
        return Spent(now(), cpu, _bytes_on_loopback())

    def loss(self) -> float:
        """On validation rows, after the last round; nats."""

        def validated() -> list[int]:
            roles = (COORDINATOR, *PEERS)
            return [line["loss"] for role in roles for line in self.lines(role, "validated")]

        self.wait("the validation", lambda: len(validated()) > 0)
        for closed in self.lines(COORDINATOR, "round_closed"):
            if closed["claims"] != REPLICAS:
                raise RuntimeError(f"round {closed['step']} has {closed['claims']} claims")
        return validated()[-1] / LOSS_SCALE


def _bytes_on_loopback() -> int:
    lines = Path("/proc/net/dev").read_text().splitlines()
    (counters,) = (line.split()[1:] for line in lines if line.split()[0] == "lo:")
    return int(counters[0])


def measure(job: TorchftJob) -> dict[str, Any]:
    """One run, from its start to its end."""
    with tempfile.TemporaryDirectory(prefix="tallystick-torchft-") as folder:
        swarm = Swarm(job, Path(folder))
        try:
            spent = [swarm.after(round) for round in range(1, job.rounds)]
            loss = swarm.loss()
        finally:
            swarm.kill()
    pairs = zip(astuple(spent[0]), astuple(spent[-1]), strict=True)
    seconds, cpu, sent = ((end - begin) / (len(spent) - 1) for begin, end in pairs)
    return {
        "seed": job.seed,
        "system": job.system,
        "codec": job.codec,
        "loss": round(loss, 4),
        "s": round(seconds, 2),
        "CPU s": round(cpu, 2),
        "MB": round(sent / REPLICAS / 1e6, 2),
    }


def compared(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs of one seed, the first of torchft, with what each is relative to that."""
    base = found[0]
    return [
        each
        | {"ppl over torchft, %": round(100 * math.expm1(each["loss"] - base["loss"]), 1)}
        | {f"ratio of {name}": round(each[name] / base[name], 2) for name in COSTS}
        for each in found
    ]


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=40, help=f"of {INNER_STEPS} inner steps")
    parser.add_argument("--seeds", type=int, nargs="*", default=[1])
    options = parsed(parser, minutes=60, rounds=4)
    try:
        torchft = version("torchft")
    except PackageNotFoundError:
        sys.exit("bench.torchft_diloco needs torchft, which no extra installs: see its --help")
    manifest = corpus().manifest.digest().hex()
    rows = list[dict[str, Any]]()
    with limit(options.minutes, "torchft_diloco"):
        for seed in options.seeds:
            found = list[dict[str, Any]]()
            for system, codec in RUNS:
                found.append(measure(TorchftJob(system, codec, seed, options.rounds, manifest)))
                tell(str(found[-1]))
            rows += compared(found)
    print(markdown(rows))
    asked = {"rounds": options.rounds, "seeds": options.seeds, "torchft": torchft}
    print(json.dumps({"rows": rows} | about(**asked)))


if __name__ == "__main__":
    main()
