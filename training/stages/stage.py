"""One stage at work: forward and backward of units, the gradient of a step, the update.

Invariants
- The gradient is the sum over units, in the order of their backward calls, of weight x (gradient of
  the unit's mean token loss); so a peer that repeats its units in order repeats its bytes (on the
  same device with the same number of threads), and `mean_buckets` is the mean by weights. A unit
  weighs its rows, or where only some tokens are targets of the loss, these.
- A unit counts once, and is never taken out again but with all others.
- A unit whose gradient turns out not finite leaves an empty gradient, never a spoilt one.
- x and dy above `LARGEST` are refused like inf: by their bytes, so by everybody. What comes of
  others is refused above it by who trains, and where nobody does only if it is not finite: so what
  is finite at a peer is so at its auditors, whose devices round otherwise.
- The state (weights, moments, counter) changes in `apply` and `load` alone, and after `apply` it
  is a function, byte for byte, of the state before, the average and the sealed norm.

A unit's forward graph is kept for its backward while fewer than `MAX_GRAPHS` wait ("sticky"). Its
inputs are not kept: whoever wants them again has them on disk. Not thread-safe. Shapes: R rows, T
tokens of a row, D width, P parameters of the stage.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from contracts.terms.errors import InvariantBroken, Malformed, NotFinite, Refused
from contracts.terms.items import ItemNumber
from training.config import ModelConfig, OptimizerConfig, StageSlice
from training.memory import MAX_GRAPHS, num_shared
from training.models.decoder import StageModel
from training.models.initial import initial_parameter
from training.models.parameters import model_shapes
from training.stages.exact import (
    Moments,
    apply_adamw,
    bind,
    bind_frozen,
    layout_of,
    need_finite,
    repeat_bytes,
)
from training.stages.sealed_state import EXP_AVG, EXP_AVG_SQ, SealedState
from training.stages.torch_free import UpdateScalars, chunk_bounds, update_scalars

LARGEST = 2.0**48
"""Magnitude of an element. Squares of it, added up by the million, are far from inf in fp32."""


@dataclass(frozen=True, slots=True)
class UnitInputs:
    """What a stage needs of one unit.

    rows_RT: Tokens of the rows (R, T + 1) int64, on the first and the last stage.
    x_RTD: Output of the stage before, on every stage but the first.
    targets_RT: Which tokens the loss counts (R, T) bool, of the labels; None: all.
    weight: In the gradient; with `targets_RT` their number. None: the rows.
    """

    rows_RT: Tensor | None = None
    x_RTD: Tensor | None = None
    targets_RT: Tensor | None = None
    weight: int | None = None


@dataclass(frozen=True, slots=True)
class _Graph:
    weight: int
    x: Tensor | None  # leaf that collects dx, none on the first stage
    y: Tensor  # output, or on the last stage weight x mean loss


_NO_TARGET = -100  # a label that `cross_entropy` leaves out
_TOKENS = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32}


def rows_tensor(rows: Sequence[bytes], *, token_bytes: int = 1) -> Tensor:
    """Rows of equally many little-endian tokens, (R, T + 1) int64."""
    flat = torch.frombuffer(bytearray(b"".join(rows)), dtype=_TOKENS[token_bytes])
    return flat.view(len(rows), -1).long()


class Stage(SealedState):
    """The layers of one slice with their gradient and optimiser, fp32 on one device."""

    def __init__(
        self,
        config: ModelConfig,
        stage: StageSlice,
        optimizer: OptimizerConfig,
        *,
        device: str = "cpu",
        weights: Mapping[str, Tensor] | None = None,
        frozen: Mapping[str, Tensor] | None = None,
        trains: bool = True,
    ) -> None:
        """Start at `weights`, by default the initial ones; zero moments and no update.

        With an adapter these are its own, and `frozen` has all other parameters, which are no
        part of the state; they are not copied where they are on the device already.

        With `trains` false there are no moments, which halves its memory: such a stage computes
        gradients at these weights and has no state of its own.
        """
        self.config, self.slice, self.optimizer = config, stage, optimizer
        self.device = torch.device(device)
        if self.device.type == "cuda":
            repeat_bytes()
        self._model = StageModel(config, stage)
        self._model.to_device(self.device)
        layout = layout_of(self._model)
        zeros = partial(torch.zeros, layout.num_elements, device=self.device)
        self._gradient = zeros()
        self._trained = Moments(zeros(), zeros()) if trains else None
        beside = {}
        if self._trained is not None:
            beside = {EXP_AVG: self._trained.exp_avg, EXP_AVG_SQ: self._trained.exp_avg_sq}
        super().__init__(layout, zeros(), beside)
        self._largest = LARGEST if trains else math.inf
        for place in self.layout.places:
            if weights is None:
                first = initial_parameter(config, place.name, place.shape)
            else:
                first = weights[place.name]
            self._weights[place.start : place.end] = first.flatten()
        bind(self._model, self.layout, self._weights, self._gradient)
        if config.adapter is not None:
            if frozen is None:
                shapes = model_shapes(config, stage).items()
                frozen = {name: initial_parameter(config, name, shape) for name, shape in shapes}
            bind_frozen(self._model, frozen, self.device)
        self._graphs: OrderedDict[ItemNumber, _Graph] = OrderedDict()
        self._done: dict[ItemNumber, int] = {}  # weights

    @property
    def num_parameters(self) -> int:
        """P, the elements of the flat gradient."""
        return self.layout.num_elements

    @property
    def flat_weights(self) -> Tensor:
        """All weights, fp32 (P,); shares the stage's memory."""
        return self._weights

    @property
    def flat_moments(self) -> Moments:
        """Both moments; they share the stage's memory."""
        if self._trained is None:
            raise InvariantBroken("a stage that does not train has no moments")
        return self._trained

    # --- units ---

    def begin_step(self) -> None:
        """Forget all units and set the gradient to zero; safe to repeat."""
        self._graphs.clear()
        self._done.clear()
        self._gradient.zero_()

    def forward(self, unit: ItemNumber, inputs: UnitInputs) -> Tensor:
        """Compute a unit; a repeated unit is computed again from the new inputs.

        Returns:
            Activations (R, T, D), or on the last stage the mean token loss in nats, (), fp32.

        Raises:
            Refused: `inputs` lacks what this stage needs, or does not fit the config.
            NotFinite: the output, or what it was made of, holds inf or nan, or is too large.
        """
        graph = self._run(inputs)
        self._graphs.pop(unit, None)
        if len(self._graphs) >= MAX_GRAPHS:
            self._graphs.popitem(last=False)
        self._graphs[unit] = graph
        output = graph.y.detach()
        return output / graph.weight if self.slice.has_head else output

    def backward(self, unit: ItemNumber, dy: Tensor | None = None) -> Tensor | None:
        """Add a unit's gradient.

        Args:
            unit: A unit whose graph is here (`keeps`).
            dy: Gradient of the output (R, T, D); none on the last stage, which starts itself.

        Returns:
            dx, the gradient of the stage's input (R, T, D); none on the first stage.

        Raises:
            Refused: no graph of the unit is here, it was already counted, or dy is missing or does
                not fit.
            NotFinite: dy, dx or the gradient holds inf or nan, or is too large.
        """
        if unit in self._done:
            raise Refused(f"unit {unit} is already in the gradient", unit=unit)
        if (graph := self._graphs.get(unit)) is None:
            raise Refused(f"unit {unit} has no graph here", unit=unit)
        dx = self._accumulate(unit, graph, dy)
        self._done[unit] = graph.weight
        return dx

    def keeps(self, unit: ItemNumber) -> bool:
        """Whether the graph of a unit is here for its backward."""
        return unit in self._graphs

    def _run(self, inputs: UnitInputs) -> _Graph:
        x, labels_RT = _split(self.config, self.slice, inputs)
        if inputs.x_RTD is not None:
            need_finite(x, "the input of a unit", largest=LARGEST)
        x = x.to(self.device)
        leaf = None if self.slice.has_embedding else x.detach().requires_grad_()
        y: Tensor = self._model(x if leaf is None else leaf)
        if labels_RT is not None:
            y = _weighted_loss(y, labels_RT.to(self.device), inputs.targets_RT)
        self._need_finite(y, "the output of a unit")
        return _Graph(inputs.weight or len(x), leaf, y)

    def _accumulate(self, unit: ItemNumber, graph: _Graph, dy: Tensor | None) -> Tensor | None:
        if (dy is None) != self.slice.has_head:
            raise Refused("dy comes with every backward but the last stage's")
        if dy is not None and dy.shape != graph.y.shape:
            raise Refused(f"dy has shape {tuple(dy.shape)}, wanted {tuple(graph.y.shape)}")
        if dy is not None:
            need_finite(dy, "the output gradient of a unit", largest=LARGEST)
        del self._graphs[unit]  # a graph serves one backward
        graph.y.backward(_seed(graph.y, dy))
        dx = None if graph.x is None else graph.x.grad
        self._need_finite_or_forget(dx)
        return dx

    def _need_finite(self, tensor: Tensor, what: str) -> None:
        need_finite(tensor, what, largest=self._largest)

    def _need_finite_or_forget(self, dx: Tensor | None) -> None:
        try:
            if dx is not None:
                self._need_finite(dx, "the input gradient of a unit")
            self._need_finite(self._gradient, "the gradient with a unit")
        except NotFinite:
            self.begin_step()  # its part of the gradient cannot be taken out again
            raise

    # --- the step ---

    @property
    def units(self) -> tuple[ItemNumber, ...]:
        """Units in the gradient, in the order they were added."""
        return tuple(self._done)

    @property
    def num_samples(self) -> int:
        """Rows, or targets, in the gradient: the weight of their mean."""
        return sum(self._done.values())

    @property
    def gradient_sum(self) -> Tensor:
        """The sum over units so far, fp32 (P,); shares the stage's memory."""
        return self._gradient

    def mean_buckets(self, num_buckets: int) -> Iterator[Tensor]:
        """Gradient of the mean loss of this step's units so far, fp32, cut as `chunk_bounds` says.

        A shared embedding comes behind the rest, cut alike. Each is made as it is asked for.

        Raises:
            Refused: no unit was counted.
        """
        if not self._done:
            raise Refused("no unit is in the gradient")
        factor, shared = 1 / self.num_samples, num_shared(self.config, self.slice)
        own = self.num_parameters - shared
        for first, size in ((0, own), (own, shared)):
            for a, b in chunk_bounds(size, num_buckets) if size else ():
                yield self._gradient[first + a : first + b] * factor

    def apply(self, averages: Iterable[Tensor], sealed_norm: int) -> None:
        """Update the state with the step's average and begin the next step.

        Args:
            averages: The sealed averaged gradient of this stage, (P,) fp32, cut anywhere.
            sealed_norm: Global gradient norm that the seal names, in 1e-9.

        Raises:
            Malformed: another number of elements.
            NotFinite: inf or nan in the average.
                The state is half changed then, unless it was the first vector.
        """
        self.update(averages, update_scalars(self.optimizer, self.counter, sealed_norm))
        self.counter += 1

    def update(self, averages: Iterable[Tensor], scalars: UpdateScalars) -> None:
        """Update weights and moments with a gradient and begin the next step; errors: `apply`."""
        start = 0
        for average in averages:
            end = start + len(average)
            if end > self.num_parameters:
                raise Malformed(f"an average of more than {self.num_parameters} elements")
            need_finite(average, "the averaged gradient")
            self._update(start, average.to(self.device), scalars)
            start = end
        if start != self.num_parameters:
            raise Malformed(f"an average of {start} elements, not {self.num_parameters}")
        self.begin_step()

    def _update(self, start: int, average: Tensor, scalars: UpdateScalars) -> None:
        end = start + len(average)
        moments = Moments(
            self.flat_moments.exp_avg[start:end], self.flat_moments.exp_avg_sq[start:end]
        )
        spans = self.layout.spans(start, end)
        apply_adamw(self._weights[start:end], moments, average, spans, scalars)

    # --- the state ---

    def load(self, tensors: Mapping[str, Tensor], counter: int) -> None:
        """Replace the state by named weights and moments, and begin a step; see `SealedState`."""
        super().load(tensors, counter)
        self.begin_step()

    # --- evaluation ---

    def measure(self, seed: int, num_rows: int) -> None:
        """Forward and backward of `num_rows` seeded rows; changes nothing.

        One unit's arithmetic, whatever the data: what a peer's rate is measured with.
        """
        config, ends = self.config, self.slice
        generator = torch.Generator().manual_seed(seed)
        shape = (num_rows, config.sequence_length)
        rows_RT = torch.randint(config.vocab_size, (shape[0], shape[1] + 1), generator=generator)
        x_RTD = torch.randn(*shape, config.width, generator=generator)
        has_rows = ends.has_embedding or ends.has_head
        graph = self._run(
            UnitInputs(rows_RT if has_rows else None, None if ends.has_embedding else x_RTD)
        )
        trained = (each for each in self._model.parameters() if each.requires_grad)
        wanted = [*trained, *([] if graph.x is None else [graph.x])]
        dy = None if ends.has_head else torch.randn(graph.y.shape, generator=generator)
        torch.autograd.grad(graph.y, wanted, _seed(graph.y, dy))

    def outputs(self, inputs: UnitInputs) -> Tensor:
        """Activations (R, T, D) of any stage but the last, without a graph.

        Raises:
            Refused, NotFinite: see `forward`.
        """
        if self.slice.has_head:
            raise InvariantBroken("the last stage has losses instead of activations")
        with torch.no_grad():
            return self._run(inputs).y

    def losses(self, x: Tensor, labels_RT: Tensor) -> Tensor:
        """Loss of each token, (R, T), in nats, without a graph; on the last stage.

        Args:
            x: What `StageModel.forward` takes.
            labels_RT: The tokens to predict, int64.
        """
        if not self.slice.has_head:
            raise InvariantBroken("only the last stage has losses")
        with torch.no_grad():
            logits_RTV = self._model(x.to(self.device))
            flat = functional.cross_entropy(
                logits_RTV.flatten(0, 1), labels_RT.to(self.device).flatten(), reduction="none"
            )
        return flat.view(labels_RT.shape)


def _weighted_loss(logits_RTV: Tensor, labels_RT: Tensor, targets_RT: Tensor | None) -> Tensor:
    """Mean loss x rows; or the sum of the losses of targets, which is their mean x their number."""
    logits = logits_RTV.flatten(0, 1)
    if targets_RT is None:
        return functional.cross_entropy(logits, labels_RT.flatten()) * len(labels_RT)
    labels_RT = labels_RT.masked_fill(~targets_RT.to(labels_RT.device), _NO_TARGET)
    flat = labels_RT.flatten()
    return functional.cross_entropy(logits, flat, ignore_index=_NO_TARGET, reduction="sum")


def _seed(y: Tensor, dy: Tensor | None) -> Tensor:
    # What the backward pass starts from: the loss itself on the last stage.
    return torch.ones_like(y) if dy is None else dy.to(y.device)


def _split(
    config: ModelConfig, stage: StageSlice, inputs: UnitInputs
) -> tuple[Tensor, Tensor | None]:
    # What the model takes, and on the last stage the labels.
    rows, x = inputs.rows_RT, inputs.x_RTD
    if (stage.has_embedding or stage.has_head) != (rows is not None):
        raise Refused("rows come with every unit of the first and the last stage, no other")
    if stage.has_embedding != (x is None):
        raise Refused("x comes with every unit but the first stage's")
    num_tokens = config.sequence_length
    if x is not None and (x.dim() != 3 or x.shape[1:] != (num_tokens, config.width)):
        raise Refused(f"x has shape {tuple(x.shape)}, wanted (R, {num_tokens}, {config.width})")
    if rows is None:
        return cast(Tensor, x), None
    if rows.dim() != 2 or rows.shape[1] != num_tokens + 1:
        raise Refused(f"rows have shape {tuple(rows.shape)}, wanted (R, {num_tokens + 1})")
    if x is not None and len(x) != len(rows):
        raise Refused(f"{len(rows)} rows came with {len(x)} rows of activations")
    if int(rows.max()) >= config.vocab_size:
        raise Malformed(f"a token is outside the vocabulary of {config.vocab_size}")
    return rows[:, :-1] if x is None else x, rows[:, 1:] if stage.has_head else None
