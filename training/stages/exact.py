"""Tensors with equal bytes on all threads and devices: arithmetic, update, layout, root.

Invariant: only element-wise operations, each rounded once, in a fixed order. Means and updates,
which all members must derive alike, never use `sum`, `norm`, `dot` or fused kernels, whose order
depends on threads; norms are in `training.averaging.norms`. Wire form: fp32, little-endian, C
order, without header.

The AdamW update (docs/protocol.md 3.6). Invariant: weights and both moments after it are a
function, byte for byte, of the bytes before it, the averaged gradient and the sealed norm. Nothing
is fused (no `addcmul`, no `alpha`), scalars are fp32 numbers and multiply instead of divide (CUDA
divides by a scalar through its reciprocal), and the square root goes through fp64 because
`torch.sqrt` is not correctly rounded. Blocks, threads and order of blocks do not matter. Decay is
decoupled (Loshchilov and Hutter 2019) and applies to matrices: every parameter with two dimensions
decays, embedding and head among them; norm weights do not.

The layout. Invariant: the order is that of `StageModel.named_parameters()`, a function of config
and slice; the weights, the gradient and both moments of a stage use the same offsets, so a chunk of
the flat gradient means the same parameters at every peer.

The root of a state's tensors. Invariant: equal roots mean equal names, dtypes, shapes and bytes.
Each tensor has its own digest below the root, so a downloaded state is checked tensor by tensor.
"""

import math
import os
import platform
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from ctypes import CDLL
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils import deterministic

from contracts.terms.digest import digest, tensor_digest
from contracts.terms.encoding import encode
from contracts.terms.errors import Malformed, NotFinite, Refused
from contracts.terms.ids import Digest
from contracts.terms.messages import LOSS_SCALE
from training.models.decoder import StageModel
from training.stages.torch_free import UpdateScalars

# ------------------------------------------------------------------------ arithmetic and wire form

_SUM_BLOCK = 2**18  # elements at a time, so that starting an operation costs less than it does
_BLOCK_OF_GPU = 2**24  # where starting an operation takes as long as a million elements
_M_ARENA_MAX = -8  # mallopt(3)


def need_finite(tensor: Tensor, what: str, *, largest: float = math.inf) -> None:
    """Refuse inf and nan, and magnitudes above `largest`.

    Raises:
        NotFinite: naming `what`.
    """
    if not tensor.numel():
        return
    # Extremes instead of a mask: one pass without memory of its own; nan is an extreme to aminmax.
    # Both at once: each transfer from a GPU waits for all that it has to do.
    extremes = torch.stack(torch.aminmax(tensor.detach())).abs().tolist()
    if not all(map(math.isfinite, extremes)):
        raise NotFinite(f"{what} is not finite")
    if max(extremes) > largest:
        raise NotFinite(f"{what} is so large that it may not be finite elsewhere")


def weighted_mean(
    parts: Iterable[Tensor], weights: Sequence[int], totals: Sequence[int] = ()
) -> Tensor:
    """Mean of equally long fp32 vectors by whole weights, added in the given order.

    Each part is multiplied with fp32(weight / total), so the mean of one part is that part. Where
    `totals` says another total for each part, groups with one total each have their means added.
    One part is looked at at a time.

    Raises:
        Refused: no part, a weight below 0, a total that is not positive, or not as many.
        Malformed: parts of different lengths.
    """
    totals = totals or [sum(weights)] * len(weights)
    if not weights or len(totals) != len(weights):
        raise Refused("a mean needs as many weights as parts, and at least one")
    if min(weights) < 0 or min(totals) <= 0:
        raise Refused("the weights of a mean are not negative, and not all of them zero")
    factors = [weight / total for weight, total in zip(weights, totals, strict=True)]
    mean, num_parts = torch.empty(0), 0
    for part in parts:
        if num_parts == len(factors):
            raise Refused("a mean has more parts than weights")
        if not num_parts:
            mean = torch.zeros_like(part)
        if len(part) != len(mean):
            raise Malformed("parts of one mean differ in length")
        for start in range(0, len(mean), _SUM_BLOCK):
            block = slice(start, start + _SUM_BLOCK)
            mean[block] += part[block] * factors[num_parts]
        num_parts += 1
    if num_parts != len(factors):
        raise Refused("a mean has fewer parts than weights")
    return mean


def to_wire(tensor: Tensor) -> memoryview:
    """Wire bytes of an fp32 tensor; shares memory with a contiguous tensor on the CPU."""
    return tensor.detach().cpu().contiguous().numpy().data.cast("B")


# ------------------------------------------------------------------- the root of a state's tensors


def digest_of(tensor: Tensor) -> Digest:
    """Digest of an fp32 tensor's wire bytes with its shape."""
    return tensor_digest("float32", tuple(tensor.shape), to_wire(tensor))


def tensors_root(named: Iterable[tuple[str, Tensor]]) -> Digest:
    """One digest over names and tensors, in their order."""
    return digest("stage tensors", encode([[name, digest_of(tensor)] for name, tensor in named]))


# -------------------------------------------------------------------------------------- the update

BLOCK_ELEMENTS = 2**16  # what six operands of a block need stays in a core's cache


@dataclass(frozen=True, slots=True)
class Moments:
    """First and second moment of each weight, fp32 (P,)."""

    exp_avg: Tensor
    exp_avg_sq: Tensor


@dataclass(frozen=True, slots=True)
class Span:
    """Elements [start, end) of the flat weights, which all decay or all do not."""

    start: int
    end: int
    decays: bool


def apply_adamw(
    weights: Tensor,
    moments: Moments,
    average: Tensor,
    spans: Sequence[Span],
    scalars: UpdateScalars,
    *,
    block_elements: int | None = None,
) -> None:
    """Update `weights` and `moments` in place.

    Args:
        weights: fp32 (P,).
        moments: fp32 (P,) each.
        average: Averaged gradient before clipping, fp32 (P,); it is not changed.
        spans: Cover [0, P) in order.
        scalars: Of this update.
        block_elements: How many elements are worked on at a time; it does not change a byte.
    """
    size = block_elements or (BLOCK_ELEMENTS if weights.device.type == "cpu" else _BLOCK_OF_GPU)
    with torch.no_grad():
        for block, decaying in _blocks(spans, len(weights), size):
            for part in decaying:
                weights[part].mul_(scalars.decay)
            _update_block(
                weights[block],
                moments.exp_avg[block],
                moments.exp_avg_sq[block],
                average[block] * scalars.clip,
                scalars,
            )


def _blocks(
    spans: Sequence[Span], num_elements: int, block_elements: int
) -> Iterator[tuple[slice, list[slice]]]:
    """Blocks of [0, P) in order, each with its parts that decay."""
    waiting = deque(span for span in spans if span.decays)
    for start in range(0, num_elements, block_elements):
        end, decaying = min(start + block_elements, num_elements), []
        while waiting and waiting[0].start < end:
            span = waiting[0]
            decaying.append(slice(max(span.start, start), min(span.end, end)))
            if span.end > end:
                break
            waiting.popleft()
        yield slice(start, end), decaying


def _update_block(
    weights: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    gradient: Tensor,
    scalars: UpdateScalars,
) -> None:
    exp_avg.mul_(scalars.beta1).add_(gradient * scalars.one_minus_beta1)
    exp_avg_sq.mul_(scalars.beta2).add_(gradient.mul_(gradient).mul_(scalars.one_minus_beta2))
    denominator = exp_avg_sq.double().sqrt_().float()
    denominator.mul_(scalars.inverse_root_correction2).add_(scalars.epsilon)
    weights.sub_(torch.div(exp_avg, denominator).mul_(scalars.step_size))


# -------------------------------------------------------------------------------------- the layout


@dataclass(frozen=True, slots=True)
class ParameterPlace:
    """Elements [start, end) of the flat vectors hold the parameter `name`."""

    name: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ParameterLayout:
    """The places of all parameters, in order, without gaps."""

    places: tuple[ParameterPlace, ...]

    @property
    def num_elements(self) -> int:
        """P, the length of the flat vectors."""
        return self.places[-1].end

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The parameters in a flat vector (P,), by name, in order; they share its memory."""
        return {
            place.name: flat[place.start : place.end].view(place.shape) for place in self.places
        }

    def spans(self, start: int, end: int) -> tuple[Span, ...]:
        """Which of elements [start, end) decay: those of parameters with two dimensions.

        Counted from `start`.
        """
        return tuple(
            Span(max(p.start, start) - start, min(p.end, end) - start, decays=len(p.shape) == 2)
            for p in self.places
            if p.start < end and p.end > start
        )


def layout_of(model: StageModel) -> ParameterLayout:
    """The layout of what a stage's model trains."""
    places, start = [], 0
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        end = start + math.prod(parameter.shape)
        places.append(ParameterPlace(name, tuple(parameter.shape), start, end))
        start = end
    return ParameterLayout(tuple(places))


def bind(model: StageModel, layout: ParameterLayout, weights: Tensor, gradient: Tensor) -> None:
    """Let the model's parameters, and their gradients, live in flat vectors (P,)."""
    gradients = layout.views(gradient)
    for name, view in layout.views(weights).items():
        parameter = nn.Parameter(view)
        parameter.grad = gradients[name]
        _set_parameter(model, name, parameter)


def bind_frozen(model: StageModel, weights: Mapping[str, Tensor], device: torch.device) -> None:
    """Let the parameters that are not trained be these tensors, on the device."""
    for name, parameter in list(model.named_parameters()):
        if not parameter.requires_grad:
            tensor = weights[name].to(device)
            _set_parameter(model, name, nn.Parameter(tensor, requires_grad=False))


def _set_parameter(model: StageModel, name: str, parameter: nn.Parameter) -> None:
    owner, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(owner), attribute, parameter)


def millionths(loss: Tensor) -> int:
    """A loss in 1e-6 nats; raises NotFinite."""
    value = float(loss)
    if not math.isfinite(value):
        raise NotFinite("a loss is not finite")
    return round(value * LOSS_SCALE)


# ----------------------------------------------------------------------------- devices and threads


def device_class(device: torch.device) -> str:
    """Kind, model and torch version: equal for devices that compute equal bytes."""
    if device.type == "cuda":
        return f"cuda/{torch.cuda.get_device_name(device)}/torch-{torch.__version__}"
    capability = torch.backends.cpu.get_cpu_capability()
    return f"cpu/{platform.machine()}/{capability}/torch-{torch.__version__}"


def repeat_bytes() -> None:
    """Let each CUDA device give equal bytes for equal work; call before its first matrix product.

    By default the backward pass of attention may add in the order in which blocks end.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch insists on it
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # set as such
    torch.set_deterministic_debug_mode("error")
    torch.set_float32_matmul_precision("highest")  # no TF32


def set_threads(num_threads: int) -> None:
    """Compute each operation on `num_threads` cores and one operation at a time.

    Two runs give equal gradients byte for byte only with equal numbers of threads; averaged
    gradients, updates and state roots do not depend on it. All threads share one heap: glibc would
    give each its own, which keeps what it frees (training/averaging/README.md, its table).
    """
    with suppress(AttributeError):  # another C library
        CDLL(None).mallopt(_M_ARENA_MAX, 1)
    torch.set_num_threads(num_threads)
    if torch.get_num_interop_threads() != 1:
        torch.set_num_interop_threads(1)
