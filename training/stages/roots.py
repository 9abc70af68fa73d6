"""What a stage's state is called: three digests under one (docs/protocol.md 3.6). Torch-free.

Invariant: whoever has weights root, moments root and counter can name the state root, so weights
alone can be checked against a GradCommit without the moments.
"""

from dataclasses import dataclass

from contracts.terms.digest import digest
from contracts.terms.encoding import encode
from contracts.terms.ids import Digest


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
