"""Honest devices that compute a peer-step differently, on one machine: `calibration` compares them.

Real classes: the kernels of AVX512, AVX2 and no vector extension at all, chosen by the environment
variables that torch, MKL and oneDNN read when they start, so each lives in a process of its own
(`python -m bench.calibration_devices`, one request a line); and the machine's first GPU, if it has
one. Their names are those that `tallystick.provider.probe` gives to such a machine.

Simulated classes, for what a GPU may do to sums: every matrix product is taken in another way, in
both directions, attention is written out instead of fused, and sums are taken backwards.
- split-k: products of 32 terms, added as a tree
- reversed: terms and sums in reversed order
- fp64: added in double precision, rounded once
- bf16-partials: four partial products, each rounded to bfloat16 and so added (as CUDA may, with
  `allow_bf16_reduced_precision_reduction`); under bfloat16 only

Each class has two variants: CPUs with 1 and with 2 threads, others with a unit whole and in two
halves of its rows. "bfloat16" is the shipped fp32 stage under torch's autocast: fp32
weights and sums of gradients, bf16 factors and products.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from contracts.terms.items import ItemNumber
from training.config import ModelConfig, OptimizerConfig, StageSlice
from training.stages.exact import set_threads
from training.stages.stage import Stage, UnitInputs
from verification.distances.thresholds import DType

TORCH = torch.__version__.partition("+")[0]
AVX512, AVX2, DEFAULT = (
    f"cpu/x86_64/{name}/torch-{TORCH}" for name in ("AVX512", "AVX2", "DEFAULT")
)
SPLIT, REVERSED, FP64, PARTIALS = (
    f"simulated/{name}" for name in ("split-k", "reversed", "fp64", "bf16-partials")
)
KERNELS: Mapping[str, Mapping[str, str]] = {
    AVX512: {},
    AVX2: {
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
    },
    DEFAULT: {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_CBWR": "COMPATIBLE",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
    },
}
"""Environment of each real class; the first needs a machine that has it."""
GPU = f"cuda/{torch.cuda.get_device_name()}/torch-{TORCH}" if torch.cuda.is_available() else ""
if GPU:
    KERNELS = {**KERNELS, GPU: {}}

APART = (PARTIALS,)
"""Classes that add in another dtype than the others, and less precisely."""

BLOCK, NUM_PARTIALS = 32, 4


# ------------------------------------------------------------------------------------ peer-steps


@dataclass(frozen=True, slots=True)
class Unit:
    """What one unit of a peer-step was computed from; fields as in `Stage.forward`, `backward`."""

    rows_RT: Tensor | None
    x_RTD: Tensor | None
    dy_RTD: Tensor | None


@dataclass(frozen=True, slots=True)
class PeerStep:
    """Everything that decides what an honest peer answers."""

    model: ModelConfig
    slice: StageSlice
    weights: Mapping[str, Tensor]
    units: tuple[Unit, ...]
    frozen: Mapping[str, Tensor]  # what an adapter is trained beside, else empty


@dataclass(frozen=True, slots=True)
class Claim:
    """What a peer answered. `loss`: nats of each unit, on the last stage; else empty."""

    y: tuple[Tensor, ...]
    dx: tuple[Tensor, ...]
    loss: tuple[Tensor, ...]
    gradient: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to compute: of a real class by threads, of a simulated one by halves of units."""

    device: str
    second: bool = False

    @property
    def is_real(self) -> bool:
        """Whether it needs a process with its own kernels."""
        return self.device in KERNELS


def devices(dtype: DType) -> tuple[str, ...]:
    """All classes that compute in `dtype`."""
    simulated = (SPLIT, REVERSED, FP64)
    return (*KERNELS, *simulated, *(APART if dtype == "bfloat16" else ()))


# ------------------------------------------------------------------------------------- products


def _split_k(a: Tensor, b: Tensor) -> Tensor:
    partials = [x @ y for x, y in _blocks(a.float(), b.float(), BLOCK)]
    while len(partials) > 1:
        left, right = partials[0::2], partials[1::2]
        added = [x + y for x, y in zip(left, right, strict=False)]
        partials = added + left[len(right) :]
    return partials[0].to(a.dtype)


def _reversed(a: Tensor, b: Tensor) -> Tensor:
    return (a.float().flip(-1) @ b.float().flip(-2)).to(a.dtype)


def _fp64(a: Tensor, b: Tensor) -> Tensor:
    return (a.double() @ b.double()).to(a.dtype)


def _partials(a: Tensor, b: Tensor) -> Tensor:
    size = -(-a.shape[-1] // NUM_PARTIALS)
    total, *others = [(x @ y).to(a.dtype) for x, y in _blocks(a.float(), b.float(), size)]
    for partial in others:
        total = total + partial
    return total


def _blocks(a: Tensor, b: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(a.split(size, dim=-1), b.split(size, dim=-2), strict=True)


PRODUCTS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    SPLIT: _split_k,
    REVERSED: _reversed,
    FP64: _fp64,
    PARTIALS: _partials,
}

_ATEN = torch.ops.aten
_SUMS = (_ATEN.sum.dim_IntList, _ATEN.mean.dim)


class OtherSums(TorchDispatchMode):
    """Inside it, matrix products and sums are those of a simulated class, backward passes too."""

    def __init__(self, device: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not annotate it
        self._product = PRODUCTS[device]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Take a product or a sum in the other way; all else as it is."""
        if func in (_ATEN.mm.default, _ATEN.bmm.default):
            return self._product(*args)
        if func in _SUMS and args[0].is_floating_point():
            args = (args[0].flip(args[1]), *args[1:])
        return func(*args, **(kwargs or {}))


# ------------------------------------------------------------------------------------ computing


def compute(step: PeerStep, variant: Variant, dtype: DType) -> Claim:
    """An honest answer, from the shipped stage."""
    is_cpu = variant.is_real and variant.device != GPU
    torch.set_num_threads(2 if is_cpu and variant.second else 1)
    with sums_of(variant):
        device = "cuda" if variant.device == GPU else "cpu"
        return _answer(step, dtype, device, in_halves=variant.second and not is_cpu)


@contextmanager
def sums_of(variant: Variant) -> Iterator[None]:
    """Inside it, sums are those of a variant, if it is no real one."""
    with ExitStack() as stack:
        if not variant.is_real:
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            stack.enter_context(OtherSums(variant.device))
        yield


def _answer(step: PeerStep, dtype: DType, device: str, *, in_halves: bool) -> Claim:
    optimizer = OptimizerConfig(0.001, 1)
    stage = Stage(
        step.model, step.slice, optimizer, device=device, weights=step.weights, frozen=step.frozen
    )
    answers = []
    for number, unit in enumerate(step.units):
        pieces = _halves(unit) if in_halves else (unit,)
        answers.append(
            [
                _run(stage, ItemNumber(2 * number + at), piece, dtype)
                for at, piece in enumerate(pieces)
            ]
        )
    gradient = stage.layout.views(torch.cat([*stage.mean_buckets(1)]).cpu())
    is_last = step.slice.has_head
    outputs = [torch.stack([y for y, _ in pieces]) for pieces in answers if is_last]
    return Claim(
        y=() if is_last else tuple(torch.cat([y for y, _ in pieces]) for pieces in answers),
        dx=()
        if step.slice.has_embedding
        else tuple(torch.cat([dx for _, dx in pieces if dx is not None]) for pieces in answers),
        loss=tuple(output.mean() for output in outputs),
        gradient=gradient,
    )


def _halves(unit: Unit) -> tuple[Unit, Unit]:
    tensors = (unit.rows_RT, unit.x_RTD, unit.dy_RTD)
    first, second = zip(
        *((None, None) if tensor is None else tensor.chunk(2) for tensor in tensors), strict=True
    )
    return Unit(*first), Unit(*second)


def _run(stage: Stage, name: ItemNumber, unit: Unit, dtype: DType) -> tuple[Tensor, Tensor | None]:
    with torch.autocast(stage.device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
        y = stage.forward(name, UnitInputs(rows_RT=unit.rows_RT, x_RTD=unit.x_RTD))
    dx = stage.backward(name, unit.dy_RTD)
    return y.float().cpu(), None if dx is None else dx.cpu()


# ------------------------------------------------------------------------------------ processes


def save(step: PeerStep, path: Path) -> None:
    """Write a peer-step where another process of this test can read it."""
    torch.save(step, path)


def load(path: Path) -> Any:
    """Read what a process of this test wrote: a peer-step or a claim, pickled, of our own."""
    return torch.load(path, weights_only=False)


class Device:
    """A process with the kernels of one real class, that answers one request after another."""

    def __init__(self, device: str, folder: Path) -> None:
        self.device, self._folder = device, folder
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.calibration_devices"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Threads that wait must sleep: on a busy machine they would take the core of who works.
            env=os.environ | dict(KERNELS[device]) | {"GOMP_SPINCOUNT": "0"},
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()

    def ask(self, path: Path, variants: Sequence[Variant], dtype: DType) -> None:
        """Request the answers of `variants` to the peer-step at `path`."""
        assert self._process.stdin is not None
        request = [str(path), [variant.second for variant in variants], dtype]
        self._process.stdin.write(json.dumps([self.device, *request]) + "\n")
        self._process.stdin.flush()

    def answer(self) -> list[Claim]:
        """The answers to the oldest request."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process of {self.device} ended")
        path = Path(json.loads(line))
        claims: list[Claim] = load(path)
        path.unlink()
        return claims


def capability() -> str:
    """The class of this process, as the probe of a provider names it."""
    return f"cpu/x86_64/{torch.backends.cpu.get_cpu_capability()}/torch-{TORCH}"


def main() -> None:
    """Answer requests from stdin until it ends."""
    set_threads(1)
    for number, line in enumerate(sys.stdin):
        device, path, seconds, dtype = json.loads(line)
        if device not in (capability(), GPU):
            raise RuntimeError(f"this process computes as {capability()}, not as {device}")
        step = load(Path(path))
        claims = [compute(step, Variant(device, second), dtype) for second in seconds]
        answer = Path(f"{path}.{device.split('/')[2]}.{dtype}.{number}")
        torch.save(claims, answer)
        print(json.dumps(str(answer)), flush=True)


def false_units(step: PeerStep, change: Callable[[Unit], Unit]) -> PeerStep:
    """The same peer-step from changed inputs: what cheats that compute something compute."""
    return replace(step, units=tuple(change(unit) for unit in step.units))


if __name__ == "__main__":
    main()
