"""Can a model of more than a hundred million parameters be had, and what does publishing cost?

`python -m bench.large_models [--steps N]` prints a table and one line of JSON. A whole market runs,
every service, with as many providers as stages, real processes all; per job: `plan`, an order,
training, the upload of the weights, `tallystick job download` as a process of its own, and the
folder opened by `transformers`, each tensor compared with the checkpoints that the peers left on
disk. Sequences are short and units few: parameters are what is measured.

Memory is the proportional set size (Pss, /proc/PID/smaps_rollup: pages that several processes share
count in parts), sampled all the time: at most while the job is trained, just before the first part
goes up, and at most while parts go up, which is as long as the peer's file `upload` is there. Of
the download it is the greatest resident size, Python and its libraries included. MB are 1e6 bytes.
It takes some five minutes on two cores and up to 6 GB of memory; `--quick` has two million
parameters.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from bench.measuring import about, limit, memory_of, parsed, parser_of
from contracts.terms.ids import JobId
from market.bodies.routes import GET_CHECKPOINTS
from tallystick.sdk.job_file import parse_job_file
from tallystick.sdk.plan import Plan, plan
from tallystick.sdk.sample import model_of_size
from tests.support.stack import MICRO_JOB, Stack, stack

JOBS = ((100_000_000, 1), (135_000_000, 2))
"""Parameters and stages of each job."""
QUICK_JOBS = ((2_000_000, 2),)
PEERS = "tallystick.provider.peer"
API = "market.api"
ASK = "1000"  # tokens per PFLOP
MEMORY = 6000  # MiB that each provider offers
SAMPLE_SECONDS = 0.02
PATIENCE = 1200.0
MB = 1e6


@dataclass
class Memory:
    """Pss of processes of one kind, in bytes."""

    training: int = 0  # at most
    before: int = 0  # the first part went up, the newest
    publishing: int = 0  # at most, while parts go up

    def note(self, num_bytes: int, *, publishing: bool) -> None:
        """One sample."""
        if publishing:
            self.publishing = max(self.publishing, num_bytes)
        else:
            self.training, self.before = max(self.training, num_bytes), num_bytes


@dataclass
class Watched:
    """What the processes of a job take, sampled until it is stopped."""

    market: Stack
    job: JobId
    memory: dict[str, Memory] = field(default_factory=dict)
    has_published: bool = False

    @property
    def held(self) -> Path:
        """Where last checkpoints are kept."""
        folder = self.market.folder / "held"
        folder.mkdir(exist_ok=True)
        return folder

    async def run(self) -> None:
        """Sample for ever."""
        known: dict[str, list[int]] = {}
        for look in range(sys.maxsize):
            if look % 50 == 0:
                known = {
                    name: [one.pid for one in self.market.find(module)]
                    for name, module in (("market", API), ("peer", PEERS))
                }
            uploads = list(self.market.folder.glob("*/leases/*/upload"))
            self.has_published |= bool(uploads)
            for upload in uploads:
                self._hold(upload.parent)
            for name, number, pid in _numbered(known):
                # What comes after the upload (evidence, the end of the process) is neither.
                if uploads or not self.has_published:
                    taken = memory_of(pid, "smaps_rollup", "Pss")
                    memory = self.memory.setdefault(f"{name} {number}", Memory())
                    memory.note(taken, publishing=bool(uploads))
            await asyncio.sleep(SAMPLE_SECONDS)

    def _hold(self, lease: Path) -> None:
        """Keep a peer's last checkpoint, which its agent removes once the market has all."""
        for path in sorted(lease.glob("groups/*/checkpoints/*.safetensors"))[-1:]:
            kept = self.held / f"{lease.name}.safetensors"
            if not kept.exists():
                kept.hardlink_to(path)


def _numbered(known: dict[str, list[int]]) -> Iterator[tuple[str, int, int]]:
    for name, pids in known.items():
        yield from ((name, number, pid) for number, pid in enumerate(sorted(pids)))


def job_file(parameters: int, stages: int, steps: int) -> dict[str, Any]:
    """A job whose parameters are all there is to it."""
    shape = model_of_size(parameters)
    names = ("width", "num_layers", "num_heads", "num_kv_heads", "ffn_width")
    return MICRO_JOB | {
        "name": f"{parameters // 10**6} M in {stages}",
        "recipe": "micro",
        "model": {name: getattr(shape, name) for name in names} | {"sequence_length": 32},
        "steps": steps,
        "units_per_step": 2,
        "rows_per_unit": 1,
        "stages": stages,
        "peers_per_stage": 1,
        "budget": 50,
        "price_ceiling": 2 * int(ASK),
        "checkpoint_every": steps,
    }


async def planned(market: Stack, fields: dict[str, Any]) -> Plan:
    """The plan, once the offers are there."""
    async with asyncio.timeout(120):
        while True:
            found = await plan(market.client, parse_job_file(fields))
            if found.fits:
                return found
            await asyncio.sleep(0.5)


async def measure(market: Stack, parameters: int, stages: int, steps: int) -> dict[str, Any]:
    """One job from plan to model."""
    fields = job_file(parameters, stages, steps)
    found = await planned(market, fields)
    submitted = await market.submit(**fields)
    watched = Watched(market, submitted.job)
    sampling = asyncio.create_task(watched.run())
    begun = time.monotonic()
    ended = ("finished", "closed")
    await market.until(submitted.job, lambda view: view.state in ended, within=PATIENCE)
    trained = time.monotonic() - begun
    view = await market.client.call(GET_CHECKPOINTS, job=submitted.job)
    while len([each for each in view.checkpoints if each.num_bytes]) < stages:
        assert not view.unpublished, view
        await asyncio.sleep(0.1)
        view = await market.client.call(GET_CHECKPOINTS, job=submitted.job)
    sampling.cancel()
    checkpoints = sorted(watched.held.iterdir())
    folder, downloaded = market.folder / f"model-{parameters}", time.monotonic()
    peak = await asyncio.to_thread(download_in_a_process, market, submitted.job, folder)
    downloaded = time.monotonic() - downloaded
    return {
        "parameters": found.parameters,
        "opened": same_in_transformers(folder, checkpoints),
        "stages": stages,
        "steps": steps,
        "seconds_trained": round(trained, 1),
        "bytes": sum(each.num_bytes or 0 for each in view.checkpoints),
        "seconds_downloaded": round(downloaded, 1),
        "download_peak": peak,
        "memory": {name: vars(memory) for name, memory in watched.memory.items()},
    }


def download_in_a_process(market: Stack, job: JobId, folder: Path) -> int:
    """Run the command; its greatest resident size in bytes, a tenth of a second before its end."""
    options = ("--market", market.client.url, "--to", str(folder))
    process = subprocess.Popen(
        (sys.executable, "-m", "tallystick", "job", "download", job.hex(), *options),
        env=market.environment("download"),
        stdout=subprocess.DEVNULL,
    )
    peak = 0
    while process.poll() is None:
        peak = max(peak, memory_of(process.pid, "status", "VmHWM"))
        time.sleep(0.1)
    assert process.returncode == 0, f"download: status {process.returncode}"
    return peak


def same_in_transformers(folder: Path, checkpoints: list[Path]) -> int:
    """How many parameters `transformers` finds; each tensor is that of a peer's checkpoint."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    state, compared = model.state_dict(), set()
    for path in checkpoints:
        with safe_open(path, framework="pt") as file:
            for name in state.keys() & set(file.keys()):
                if file.get_tensor(name).shape == state[name].shape:
                    assert torch.equal(file.get_tensor(name), state[name]), name
                    compared.add(name)
    assert compared == state.keys(), state.keys() - compared
    with torch.no_grad():
        logits = model(torch.tensor([[1, 2, 3]])).logits
    assert bool(torch.isfinite(logits).all())
    return sum(tensor.numel() for tensor in model.parameters())


async def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Each job in a market of its own."""
    found = []
    for parameters, stages in QUICK_JOBS if options.quick else JOBS:
        with tempfile.TemporaryDirectory(prefix="tallystick-large-") as folder:
            async with stack(Path(folder), forked=True) as market:
                for number in range(stages):
                    market.start_provider(f"p{number}", ask=ASK, memory=MEMORY)
                with limit(options.minutes / 2, f"{parameters} parameters in {stages}"):
                    found.append(await measure(market, parameters, stages, options.steps))
    return found


def table(found: list[dict[str, Any]]) -> Iterator[str]:
    """The lines of a markdown table."""
    yield (
        "| job | weights, MB | process | training, MB | before publishing | while publishing | "
        "download, greatest resident size |"
    )
    yield "|---|---|---|---|---|---|---|"
    for each in found:
        job = f"{each['opened'] / 1e6:.1f} M in {each['stages']}, {each['steps']} steps"
        for name, memory in sorted(each["memory"].items()):
            sizes = " | ".join(
                f"{memory[key] / MB:.0f}" for key in ("training", "before", "publishing")
            )
            peak = f"{each['download_peak'] / MB:.0f} in {each['seconds_downloaded']} s"
            yield f"| {job} | {each['bytes'] / MB:.0f} | {name} | {sizes} | {peak} |"


def main() -> None:
    """Run and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--steps", type=int, default=3)
    options = parsed(parser, minutes=40, steps=1)
    with limit(options.minutes, "large_models"):
        found = asyncio.run(run(options))
    print(*table(found), sep="\n")
    print(json.dumps(about() | {"jobs": found}))


if __name__ == "__main__":
    main()
