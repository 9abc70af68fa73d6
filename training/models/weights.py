"""Weights as they travel: a safetensors file of fp32 tensors under our names, without torch.

Invariants: equal weights give equal bytes; what was read has exactly the names and shapes that the
config asks for, is fp32 and finite, or it is refused by name. Narrower floats are widened, which
is exact; only a model that was given in a narrower dtype is rounded, to nearest, in the folder that
is its result. Files are read and written tensor by tensor, so nobody holds more of one than it asks
for; names, places and shapes are compared before the first tensor is read.

The file that a job starts from carries what stood beside the weights in their folder, as the bytes
of a tensor `BESIDE`, the first by name: peers pass over it, and who downloads the result reads it.
"""

import json
import math
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, cast

import numpy as np
from numpy.typing import NDArray

from contracts.terms.errors import Malformed, NotFinite
from training.content import what_is
from training.models.parameters import Shape
from training.models.sources import BytesSource, JoinedSource, RangeSource, Source, read

Weights = Mapping[str, NDArray[np.float32]]

MAX_HEAD_BYTES = 16 * 2**20
MAX_BESIDE_BYTES = 32 * 2**20
BESIDE = "_beside"
_LENGTH_BYTES = 8  # before the head
_FP32 = 4
MOST_BEFORE_TENSORS = _LENGTH_BYTES + MAX_HEAD_BYTES + MAX_BESIDE_BYTES
_POINTER_BYTES = 4096  # what stands in for a file is shorter, or known by its start
_DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_AGAIN = "it was cut, download it again"

Dtype = Literal["F32", "F16", "BF16"]


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file."""

    file: Source
    what: str  # the file, for errors
    name: str
    dtype: str
    shape: Shape
    start: int  # of the file
    end: int

    def load(self) -> NDArray[np.float32]:
        """Its numbers, in memory; raises NotFinite."""
        values = _fp32(read(self.file, self.start, self.end), self.dtype).reshape(self.shape)
        if not np.isfinite(values).all():
            raise NotFinite(f"{self.what}: tensor {self.name} is not finite")
        return values

    def source(self) -> Source:
        """Its bytes as fp32; of a file of fp32 they are read where they lie."""
        if self.dtype == "F32":
            return RangeSource(self.file, self.start, self.end)
        return _Widened(self)


class StoredWeights(Weights):
    """Tensors that are loaded when they are asked for, each time."""

    def __init__(self, tensors: Mapping[str, StoredTensor]) -> None:
        self.tensors = dict(tensors)

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        return self.tensors[name].load()

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __or__(self, other: "StoredWeights") -> "StoredWeights":
        return StoredWeights(self.tensors | other.tensors)


# ------------------------------------------------------------------------------------- reading


def stored_weights(file: Source, wanted: Mapping[str, Shape], *, what: str) -> StoredWeights:
    """The tensors of `wanted` in a file, in that order; others in it are passed over.

    Args:
        file: A safetensors file.
        wanted: Shape by name.
        what: The file, for errors.

    Raises:
        Malformed: no safetensors, or a tensor is missing, of another shape or no float.
    """
    found = tensors_in(file, what=what)
    for name, shape in wanted.items():
        if name not in found:
            raise Malformed(f"{what} has no tensor {name}")
        if found[name].shape != shape:
            raise Malformed(f"{what}: tensor {name} has shape {found[name].shape}, wanted {shape}")
    return StoredWeights({name: found[name] for name in wanted})


def decode_weights(file: Source, wanted: Mapping[str, Shape], *, what: str) -> Weights:
    """The same in memory, loaded in the order of the file; raises NotFinite as well."""
    stored = stored_weights(file, wanted, what=what)
    in_order = sorted(wanted, key=lambda name: stored.tensors[name].start)
    loaded = {name: stored[name] for name in in_order}
    return {name: loaded[name] for name in wanted}


def merged(pieces: Iterable[Weights]) -> tuple[Weights, tuple[str, ...]]:
    """The whole model of its stages, and what two of them have with different values.

    Of a matrix that two stages share, the first copy is taken.
    """
    whole: ChainMap[str, NDArray[np.float32]] = ChainMap()
    differing: list[str] = []
    for piece in pieces:
        known = set(whole)
        common = [name for name in piece if name in known]
        differing += [name for name in common if not np.array_equal(piece[name], whole[name])]
        whole.maps.append(cast(Any, piece))
    return whole, tuple(differing)


def tensors_in(file: Source, *, what: str) -> dict[str, StoredTensor]:
    """All tensors of a safetensors file that we can read.

    Raises:
        Malformed: no safetensors, or a file that was cut.
    """
    found = _all_tensors(file, what)
    return {tensor.name: tensor for tensor in found if tensor.dtype in _DTYPES}


def bytes_beside(file: Source, *, what: str) -> bytes:
    """What `weights_source` put beside the weights; empty if there is nothing.

    Raises:
        Malformed: no safetensors, or too much beside them.
    """
    for tensor in _all_tensors(file, what):
        if (tensor.name, tensor.dtype) == (BESIDE, "U8"):
            if tensor.end - tensor.start > MAX_BESIDE_BYTES:
                raise Malformed(f"{what} has more than {MAX_BESIDE_BYTES} bytes beside its weights")
            return bytes(read(file, tensor.start, tensor.end))
    return b""


def _all_tensors(file: Source, what: str) -> list[StoredTensor]:
    try:
        return list(_tensors(file, what))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        start = bytes(read(file, 0, min(file.num_bytes, _POINTER_BYTES)))
        if (kind := what_is(start)) is not None:
            raise Malformed(f"{what} is {kind.name}: {kind.remedy}") from error
        raise Malformed(f"{what} is no safetensors file: {error}") from error


_MOST_DIMENSIONS = 8


def _tensors(file: Source, what: str) -> Iterator[StoredTensor]:
    if file.num_bytes < _LENGTH_BYTES:
        raise ValueError("it is too short")
    num_bytes = int.from_bytes(read(file, 0, _LENGTH_BYTES), "little")
    begin = _LENGTH_BYTES + num_bytes
    if num_bytes > MAX_HEAD_BYTES:
        raise ValueError(f"a head of {num_bytes} bytes")
    if begin > file.num_bytes:
        raise ValueError(f"it ends in its head, at byte {file.num_bytes}: {_AGAIN}")
    head = json.loads(read(file, _LENGTH_BYTES, begin))
    for name, entry in head.items():
        if name == "__metadata__":
            continue
        dtype, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        if len(shape) > _MOST_DIMENSIONS:  # the product of many takes hours
            raise ValueError(f"tensor {name} has {len(shape)} dimensions")
        if not all(type(each) is int and 0 <= each < 2**48 for each in (*shape, start, end)):
            raise ValueError(f"tensor {name} lies outside")
        if end > file.num_bytes - begin:
            raise ValueError(f"it ends before tensor {name}, at byte {file.num_bytes}: {_AGAIN}")
        width = np.dtype(_DTYPES[dtype]).itemsize if dtype in _DTYPES else 0
        if width and end - start != math.prod(shape) * width:
            raise ValueError(f"tensor {name} has {end - start} bytes")
        yield StoredTensor(file, what, name, dtype, shape, begin + start, begin + end)


# ------------------------------------------------------------------------------------- writing


def weights_source(weights: StoredWeights, beside: bytes = b"") -> Source:
    """The file of these tensors as fp32, which stay where they are, and of what is beside them."""
    tensors = weights.tensors
    head = _head({name: tensor.shape for name, tensor in tensors.items()}, num_beside=len(beside))
    sources = [tensors[name].source() for name in sorted(tensors)]
    return JoinedSource([BytesSource(head), BytesSource(beside), *sources])


def write_weights(
    file: BinaryIO, weights: Weights, shapes: Mapping[str, Shape], *, dtype: Dtype = "F32"
) -> None:
    """Write the file of these tensors, one after the other, rounded to nearest in `dtype`.

    Raises:
        Malformed: one has another shape. NotFinite: one is not, or not in `dtype`.
        OSError: it cannot be written.
    """
    file.write(_head(shapes, dtype))
    for name in sorted(shapes):
        values = weights[name]
        if values.shape != shapes[name]:
            raise Malformed(f"tensor {name} has shape {values.shape}, wanted {shapes[name]}")
        rounded = _rounded(values, dtype)
        if dtype != "F32" and not np.isfinite(_fp32(rounded.data, dtype)).all():
            raise NotFinite(f"tensor {name} is not finite as {dtype}")
        file.write(rounded.data)


def _rounded(values: NDArray[np.float32], dtype: Dtype) -> NDArray[Any]:
    """Fresh or shared numbers, to be written as they lie."""
    if dtype == "BF16":  # half of the last kept bit, or a bit less where that one is even
        bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
        kept: NDArray[Any] = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return kept.astype("<u2")
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values, dtype=_DTYPES[dtype])


def _head(shapes: Mapping[str, Shape], dtype: Dtype = "F32", *, num_beside: int = 0) -> bytes:
    """What stands before the tensors, as `safetensors` itself writes it."""
    head: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # transformers refuses a file without
    end = num_beside
    if num_beside:
        head[BESIDE] = {"dtype": "U8", "shape": [num_beside], "data_offsets": [0, end]}
    width = np.dtype(_DTYPES[dtype]).itemsize
    for name in sorted(shapes):
        start, end = end, end + width * math.prod(shapes[name])
        head[name] = {"dtype": dtype, "shape": list(shapes[name]), "data_offsets": [start, end]}
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


class _Widened:
    """A tensor of narrower floats, loaded for each read."""

    def __init__(self, tensor: StoredTensor) -> None:
        self._tensor, self.num_bytes = tensor, _FP32 * math.prod(tensor.shape)

    def read_into(self, start: int, into: memoryview) -> None:
        """See `Source.read_into`."""
        part = RangeSource(self._tensor.file, self._tensor.start, self._tensor.end)
        width = np.dtype(_DTYPES[self._tensor.dtype]).itemsize
        first, last = start // _FP32, -(-(start + into.nbytes) // _FP32)
        values = _fp32(read(part, first * width, last * width), self._tensor.dtype)
        into[:] = values.data.cast("B")[start - first * _FP32 :][: into.nbytes]


def _fp32(data: bytearray | memoryview, dtype: str) -> NDArray[np.float32]:
    values = np.frombuffer(data, dtype=_DTYPES[dtype])
    if dtype == "BF16":  # its bits are the upper half of a float32
        values = (values.astype("<u4") << 16).view("<f4")
    return values.astype("<f4", copy=False)
