"""Weights as they travel: one safetensors blob of fp32 tensors under our names, without torch.

Invariants: equal weights give equal bytes; what was read has exactly the names and shapes that the
config asks for, is fp32 and finite, or it is refused by name. Narrower floats are widened, which
is exact; nothing is rounded.
"""

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save

from contracts.terms.errors import Malformed, NotFinite
from training.models.parameters import Shape

Weights = dict[str, NDArray[np.float32]]

_METADATA = {"format": "pt"}  # without it transformers refuses the file


def encode_weights(weights: Mapping[str, NDArray[np.float32]]) -> bytes:
    """The blob of these tensors."""
    plain = {name: np.ascontiguousarray(weights[name], dtype="<f4") for name in sorted(weights)}
    return save(plain, metadata=_METADATA)


def decode_weights(blob: bytes, wanted: Mapping[str, Shape], *, what: str) -> Weights:
    """The tensors of `wanted` in a blob, in that order; others in it are passed over.

    Args:
        blob: A safetensors file.
        wanted: Shape by name.
        what: The file, for errors.

    Raises:
        Malformed: no safetensors, or a tensor is missing, of another shape or no float.
        NotFinite: a tensor holds inf or nan.
    """
    found = tensors_in(blob, what=what)
    missing = next((name for name in wanted if name not in found), None)
    if missing is not None:
        raise Malformed(f"{what} has no tensor {missing}")
    return {name: _fitting(found[name], name, shape, what) for name, shape in wanted.items()}


def merged(pieces: Iterable[Weights]) -> tuple[Weights, tuple[str, ...]]:
    """The whole model of its stages, and what two of them have with different values.

    Of a matrix that two stages share, the first copy is taken.
    """
    whole: Weights = {}
    differing: list[str] = []
    for piece in pieces:
        common = [name for name in piece if name in whole]
        differing += [name for name in common if not np.array_equal(piece[name], whole[name])]
        whole = piece | whole
    return whole, tuple(differing)


def tensors_in(blob: bytes, *, what: str) -> dict[str, NDArray[np.generic]]:
    """All tensors of a safetensors file that we can read; bfloat16 comes as float32.

    Raises:
        Malformed: no safetensors.
    """
    try:
        entries = deserialize(blob)  # type: ignore[no-untyped-call]  # the library has no types
    except SafetensorError as error:
        raise Malformed(f"{what} is no safetensors file: {error}") from error
    return {
        name: _READERS[entry["dtype"]](entry["data"]).reshape(entry["shape"])
        for name, entry in entries
        if entry["dtype"] in _READERS
    }


def _bfloat16(data: bytes) -> NDArray[np.generic]:
    # Its bits are the upper half of a float32.
    return (np.frombuffer(data, dtype="<u2").astype("<u4") << 16).view("<f4")


_READERS = {
    "F32": lambda data: np.frombuffer(data, dtype="<f4"),
    "F16": lambda data: np.frombuffer(data, dtype="<f2"),
    "BF16": _bfloat16,
}


def _fitting(
    tensor: NDArray[np.generic], name: str, shape: Shape, what: str
) -> NDArray[np.float32]:
    if tensor.shape != shape:
        raise Malformed(f"{what}: tensor {name} has shape {tensor.shape}, wanted {shape}")
    values = tensor.astype(np.float32)
    if not np.isfinite(values).all():
        raise NotFinite(f"{what}: tensor {name} is not finite")
    return values
