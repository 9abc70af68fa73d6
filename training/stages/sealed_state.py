"""What a seal names of a group: flat vectors by name, and their roots, with torch."""

from collections.abc import Mapping

from torch import Tensor

from contracts.terms.errors import InvariantBroken, Malformed
from training.stages.exact import ParameterLayout, tensors_root
from training.stages.torch_free import StateRoots

EXP_AVG = "exp_avg."
EXP_AVG_SQ = "exp_avg_sq."
MOMENTUM = "momentum."
PREVIOUS = "previous."


class SealedState:
    """Weights, and what is kept beside them for the next update. Not thread-safe."""

    def __init__(
        self, layout: ParameterLayout, weights: Tensor, beside: Mapping[str, Tensor]
    ) -> None:
        """Of vectors (P,) whose memory is shared; those `beside` by the prefix of their names."""
        self.layout, self._weights, self._beside = layout, weights, beside
        self.counter = 0

    def weights(self) -> dict[str, Tensor]:
        """All parameters by name, in order; they share the vector's memory."""
        return self.layout.views(self._weights)

    def moments(self) -> dict[str, Tensor]:
        """What is beside them, by prefix and parameter; it shares memory too.

        Raises:
            InvariantBroken: there is nothing: who only computes gradients has no state.
        """
        if not self._beside:
            raise InvariantBroken("a stage that does not train has no moments")
        return {
            prefix + name: view
            for prefix, vector in self._beside.items()
            for name, view in self.layout.views(vector).items()
        }

    def roots(self) -> StateRoots:
        """Digests of the present state."""
        return self.roots_of(self.weights() | self.moments(), self.counter)

    def roots_of(self, tensors: Mapping[str, Tensor], counter: int) -> StateRoots:
        """Digests that a state would have here, whoever holds it.

        Raises:
            Malformed: a tensor is missing, too many, or of another shape or dtype.
        """
        weights, moments = self.weights(), self.moments()
        _need_fit(weights | moments, tensors)
        return StateRoots(
            tensors_root((name, tensors[name]) for name in weights),
            tensors_root((name, tensors[name]) for name in moments),
            counter,
        )

    def load(self, tensors: Mapping[str, Tensor], counter: int) -> None:
        """Replace the state by named tensors.

        Raises:
            Malformed: a tensor is missing, too many, or of another shape or dtype.
        """
        own = self.weights() | self.moments()
        _need_fit(own, tensors)
        for name, view in own.items():
            view.copy_(tensors[name])
        self.counter = counter


def _need_fit(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    if set(own) != set(tensors):
        odd = sorted(set(own) ^ set(tensors))[0]
        raise Malformed(f"the state does not fit this stage: tensor {odd}")
    for name, view in own.items():
        if tensors[name].shape != view.shape or tensors[name].dtype != view.dtype:
            raise Malformed(f"the state does not fit this stage: tensor {name}")
