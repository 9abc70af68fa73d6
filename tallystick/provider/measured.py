"""What was measured of this machine, and does it still hold? No torch.

`probe.json` in a provider's home keeps what the probe measured (`probe.py`) beside all that it
depends on. Where any of that has changed it is measured again, and a line says what: otherwise the
offer would name memory that is not there, or a class by whose thresholds an honest peer is
convicted.
"""

import asyncio
import os
import re
import sys
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pydantic import ValidationError

from contracts.terms.errors import WrongConfiguration
from market.bodies.base import Body
from tallystick.provider.background import Say
from tallystick.provider.folder import write_durably
from tallystick.provider.machine import fits
from tallystick.resources import CORE, MACHINE, Limit, Resources, least

PROCESSES = 512 * 2**20
"""Bytes of an agent and of a peer without its job: what is promised to jobs does not count them."""
TASKS = 32  # processes and threads of both

_MODEL = re.compile(r"(?:model name|CPU part|uarch)\s*: *(.*)")
_FEATURES = re.compile(r"(?:flags|Features|isa)\s*: *(.*)")
_NUMBER = re.compile(r"([0-9]+\.[0-9.]+)")
_GPU = re.compile(r"(?:Model|GPU UUID):\s*(.*)")
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "ATEN_CPU_CAPABILITY")


class Measured(Body):
    """What the probe found, and what that depends on."""

    device: str
    device_class: str
    memory_bytes: int
    flops_per_second: int
    depends_on: dict[str, str]


def dependencies(resources: Resources) -> dict[str, str]:
    """What a measurement depends on, by name, as it is now."""
    cpu = resources.read("proc/cpuinfo")
    features = _first(_FEATURES, cpu).encode()
    return {
        "cpu": _first(_MODEL, cpu),
        "cpu features": blake2b(features, digest_size=4).hexdigest(),
        "cores": f"{least(resources.cores()) / CORE:g}",
        "memory": f"{least(resources.memory()) // 2**20} MB",
        "torch": _version("torch"),
        "gpu": _gpus(resources),
        "driver": _first(_NUMBER, resources.read("proc/driver/nvidia/version")),
    } | {name: os.environ.get(name, "") for name in _VARIABLES}


async def run_probe(device: str) -> Measured:
    """What the probe says, in a process of its own: it needs torch.

    Raises:
        WrongConfiguration: there is no such device, or no torch.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tallystick.provider.probe", device),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # a terminal's Ctrl-C is for the agent
    )
    try:
        said, complaint = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        raise WrongConfiguration(
            "this machine cannot compute: choose another --device, or install the extra "
            "`provider` (pip install 'tallystick[provider]'); "
            f"{complaint.decode().strip()[-300:]}"
        )
    return Measured.model_validate_json(said)


async def measured(
    path: Path,
    device: str,
    resources: Resources,
    say: Say,
    *,
    probe: Callable[[str], Awaitable[Measured]] = run_probe,
) -> Measured:
    """Return the measurement kept at `path` if it still holds, else measure and keep that.

    Args:
        path: Of the file.
        device: The owner's wish.
        resources: What this process may use.
        say: Told why something is measured again.
        probe: What measures.

    Raises:
        WrongConfiguration: there is no such device, or no torch.
        Unavailable: the file cannot be written.
    """
    kept = _kept(path)
    if kept is not None:
        changed = changes(kept, dependencies(resources))
        if not changed and fits(kept.device, device):
            return kept
        why = changed or f"--device {device} is wanted"
        say(f"this machine is measured again, as {path.name} is of another: {why}")
    elif path.exists():
        say(f"this machine is measured again: {path.name} is damaged, or of an older version")
    found = await probe(device)
    write_durably(path, found.model_dump_json().encode())
    return found


def memory_to_share(found: Measured, resources: Resources) -> tuple[Limit, ...]:
    """Limits of the memory that the agents here may offer together."""
    if found.device != "cpu":
        return (Limit(MACHINE, found.memory_bytes),)
    return tuple(
        Limit(limit.group, max(0, limit.amount - PROCESSES)) for limit in resources.memory()
    )


def cores_to_share(found: Measured, resources: Resources) -> tuple[Limit, ...]:
    """Limits of the cores whose speed was measured; a GPU counts as one."""
    return resources.cores() if found.device == "cpu" else (Limit(MACHINE, CORE),)


def changes(kept: Measured, now: dict[str, str]) -> str:
    """What it depends on that is not as it was, for people; empty: nothing."""
    before = kept.depends_on
    found = [
        f"{name} {before.get(name) or 'none'} -> {now.get(name) or 'none'}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]
    if kept.device != "cpu" and not now["driver"]:
        found.append("which driver there is cannot be seen")
    return ", ".join(found)


def _kept(path: Path) -> Measured | None:
    try:
        return Measured.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def _gpus(resources: Resources) -> str:
    cards = sorted((resources.root / "proc/driver/nvidia/gpus").glob("*/information"))
    return "; ".join(" ".join(_GPU.findall(resources.read(card))) for card in cards)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1].strip() if found else ""
