"""Is what was measured kept for the machine that it was measured on, and for no other?"""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tallystick.provider.measured import (
    PROCESSES,
    Measured,
    cores_to_share,
    dependencies,
    measured,
    memory_to_share,
)
from tallystick.resources import CORE, MACHINE, Limit, Resources

GIB = 2**30
DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build\nGCC 12.3\n"
CARD = "Model: \t\t NVIDIA H100\nIRQ:   \t\t 26\nGPU UUID: \t {}\nVideo BIOS: \t 96\n"
CPU = "processor\t: 0\nmodel name\t: {}\ncpu MHz\t\t: 2596.1\nflags\t\t: {}\n"
DRIVER_AT, CARD_AT = (
    "proc/driver/nvidia/version",
    "proc/driver/nvidia/gpus/0000:01:00.0/information",
)
HERE = {
    "proc/cpuinfo": CPU.format("AMD EPYC", "sse avx2"),
    "proc/meminfo": f"MemTotal: {24 * 2**20} kB\n",
    "proc/self/cgroup": "0::/\n",
}
GPU = {DRIVER_AT: DRIVER.format("550.54"), CARD_AT: CARD.format("GPU-1")}
OLD = (
    '{"device": "cpu", "device_class": "cpu", "memory_bytes": 274877906944, "flops_per_second": 1}'
)


class Home:
    """A provider's home, on a machine that these files show."""

    def __init__(self, folder: Path, files: Mapping[str, str]) -> None:
        self.resources, self.said, self.count = Resources(folder / "machine"), list[str](), 0
        self.kept = folder / "probe.json"
        self.change(files)
        self.found = "cuda:0" if DRIVER_AT in files else "cpu"

    def change(self, files: Mapping[str, str]) -> None:
        """Make it another machine."""
        for name, text in files.items():
            (self.resources.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.resources.root / name).write_text(text)

    async def start(self, device: str = "auto") -> list[str]:
        """What is said at a start."""
        self.said.clear()
        await measured(self.kept, device, self.resources, self.said.append, probe=self._probe)
        return self.said

    async def _probe(self, device: str) -> Measured:
        self.count += 1
        now = dependencies(self.resources)
        return Measured(
            device=self.found,
            device_class="class",
            memory_bytes=GIB,
            flops_per_second=self.count,
            depends_on=now,
        )


@pytest.mark.parametrize("files", [HERE, HERE | GPU], ids=["cpu", "gpu"])
async def test_measured__same_machine__is_measured_once(
    tmp_path: Path, files: dict[str, str]
) -> None:
    home = Home(tmp_path, files)

    said = [*await home.start(), *await home.start(), *await home.start()]

    assert (home.count, said) == (1, [])


@pytest.mark.parametrize(
    ("files", "changed"),
    [
        ({"proc/meminfo": f"MemTotal: {16 * 2**20} kB\n"}, "memory 24576 MB -> 16384 MB"),
        ({"sys/fs/cgroup/memory.max": f"{2 * GIB}\n"}, "memory 24576 MB -> 2048 MB"),
        ({"sys/fs/cgroup/cpu.max": "50000 100000\n"}, "-> 0.5"),
        ({"proc/cpuinfo": CPU.format("Intel Xeon", "sse avx2")}, "cpu AMD EPYC -> Intel Xeon"),
        ({"proc/cpuinfo": CPU.format("AMD EPYC", "sse avx2 avx512f")}, "cpu features "),
        (GPU, "driver none -> 550.54, gpu none -> NVIDIA H100 GPU-1"),
    ],
)
async def test_measured__machine_has_changed__is_measured_again_and_says_why(
    tmp_path: Path, files: dict[str, str], changed: str
) -> None:
    home = Home(tmp_path, HERE)
    await home.start()
    home.change(files)

    (said,) = await home.start()

    assert "is measured again" in said and changed in said
    assert (home.count, await home.start()) == (2, [])


async def test_measured__other_gpu_or_driver__is_measured_again(tmp_path: Path) -> None:
    home = Home(tmp_path, HERE | GPU)
    await home.start()
    home.change({DRIVER_AT: DRIVER.format("580.1"), CARD_AT: CARD.format("GPU-2")})
    (said,) = await home.start()
    (home.resources.root / DRIVER_AT).unlink()
    await home.start()

    (unknown,) = await home.start()

    assert "driver 550.54 -> 580.1, gpu NVIDIA H100 GPU-1 -> NVIDIA H100 GPU-2" in said
    assert "which driver there is cannot be seen" in unknown


async def test_measured__another_torch_other_device_or_other_version__is_measured_again(
    tmp_path: Path,
) -> None:
    home = Home(tmp_path, HERE)
    home.kept.write_text(OLD)
    (old,) = await home.start()
    kept = json.loads(home.kept.read_text())
    kept["depends_on"]["torch"] = "2.9.0"
    home.kept.write_text(json.dumps(kept))
    (torch,) = await home.start()
    (device,) = await home.start("cuda")

    assert old.endswith("probe.json is damaged, or of an older version")
    assert "torch 2.9.0 -> 2." in torch
    assert device.endswith("--device cuda is wanted")


def test_to_share__container_or_gpu__leaves_room_for_agent_and_peer(tmp_path: Path) -> None:
    home = Home(tmp_path, HERE | {"sys/fs/cgroup/memory.max": f"{2 * GIB}\n"})
    cpu = Measured(device="cpu", device_class="", memory_bytes=1, flops_per_second=1, depends_on={})

    of_cpu = memory_to_share(cpu, home.resources)
    gpu = cpu.model_copy(update={"device": "cuda:0", "memory_bytes": 80 * GIB})

    assert [limit.amount for limit in of_cpu] == [24 * GIB - PROCESSES, 2 * GIB - PROCESSES]
    assert memory_to_share(gpu, home.resources) == (Limit(MACHINE, 80 * GIB),)
    assert cores_to_share(gpu, home.resources) == (Limit(MACHINE, CORE),)
    assert cores_to_share(cpu, home.resources) == home.resources.cores()
