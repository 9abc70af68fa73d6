"""The state of a stage as one digest: what a GradCommit says and members compare (PROTOCOL 3.6).

Invariant: equal roots mean equal names, dtypes, shapes and bytes of all weights and both moments,
and an equal number of updates. Each tensor has its own digest below the root, so a downloaded
state is checked tensor by tensor, and the weights alone against the weights root.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from contracts.terms.digest import digest, tensor_digest
from contracts.terms.encoding import encode
from contracts.terms.ids import Digest
from training.stages.exact import to_wire


@dataclass(frozen=True, slots=True)
class StateRoots:
    """Digests of a stage's state; `counter` is the number of updates applied."""

    weights: Digest
    moments: Digest
    counter: int

    @property
    def state(self) -> Digest:
        """The state root: weights root, moments root and counter under one digest."""
        return digest("stage state", encode([self.weights, self.moments, self.counter]))


def digest_of(tensor: Tensor) -> Digest:
    """Digest of an fp32 tensor's wire bytes with its shape."""
    return tensor_digest("float32", tuple(tensor.shape), to_wire(tensor))


def tensors_root(named: Iterable[tuple[str, Tensor]]) -> Digest:
    """One digest over names and tensors, in their order."""
    return digest("stage tensors", encode([[name, digest_of(tensor)] for name, tensor in named]))
