"""Where each parameter of a stage lies in its flat vectors.

Invariant: the order is that of `StageModel.named_parameters()`, a function of config and slice;
the weights, the gradient and both moments of a stage use the same offsets, so a chunk of the flat
gradient means the same parameters at every peer.
"""

import math
from dataclasses import dataclass

from torch import Tensor, nn

from training.models.decoder import StageModel
from training.stages.optimizer import Span


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

    def spans(self) -> tuple[Span, ...]:
        """Which elements decay: those of parameters with two dimensions."""
        return tuple(Span(p.start, p.end, decays=len(p.shape) == 2) for p in self.places)


def layout_of(model: StageModel) -> ParameterLayout:
    """The layout of a stage's model."""
    places, start = [], 0
    for name, parameter in model.named_parameters():
        end = start + math.prod(parameter.shape)
        places.append(ParameterPlace(name, tuple(parameter.shape), start, end))
        start = end
    return ParameterLayout(tuple(places))


def bind(model: StageModel, layout: ParameterLayout, weights: Tensor, gradient: Tensor) -> None:
    """Let the model's parameters, and their gradients, live in flat vectors (P,)."""
    gradients = layout.views(gradient)
    for name, view in layout.views(weights).items():
        owner, _, attribute = name.rpartition(".")
        parameter = nn.Parameter(view)
        parameter.grad = gradients[name]
        setattr(model.get_submodule(owner), attribute, parameter)
