"""The tensors of a stage's state as one digest: what its roots are made of (docs/protocol.md 3.6).

Invariant: equal roots mean equal names, dtypes, shapes and bytes. Each tensor has its own digest
below the root, so a downloaded state is checked tensor by tensor.
"""

from collections.abc import Iterable

from torch import Tensor

from contracts.terms.digest import digest, tensor_digest
from contracts.terms.encoding import encode
from contracts.terms.ids import Digest
from training.stages.exact import to_wire


def digest_of(tensor: Tensor) -> Digest:
    """Digest of an fp32 tensor's wire bytes with its shape."""
    return tensor_digest("float32", tuple(tensor.shape), to_wire(tensor))


def tensors_root(named: Iterable[tuple[str, Tensor]]) -> Digest:
    """One digest over names and tensors, in their order."""
    return digest("stage tensors", encode([[name, digest_of(tensor)] for name, tensor in named]))
