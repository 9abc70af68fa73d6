"""Tensors to wire bytes and back, in the four ways that a JobSpec can name.

Invariants
- Equal numbers give equal bytes, whatever the number of threads or the library that computes:
  element-wise operations of one rounding each, and a maximum, which has none.
- Decoded numbers encode to the same bytes again (blockwise8: while codes of its scale are normal).
- Only finite numbers go in and come out. What a 16-bit format cannot hold becomes the largest
  number that it can: it is less wrong than a step that ends.

Wire form: little-endian, C order, no header; layout and sizes are in `formats.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import prod

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Buffer

from contracts.terms.errors import Malformed
from contracts.terms.messages import CodecName
from training.compression.code_book import borders, codes
from training.compression.formats import FORMATS, WireFormat
from training.stages.exact import need_finite

_CUT_BITS = 12  # low bits of an fp32 that the choice of a code ignores: 11 of 23 stay


class Codec(ABC):
    """One way to write an fp32 tensor down."""

    def __init__(self, wire: WireFormat) -> None:
        self._wire = wire

    @abstractmethod
    def encode(self, tensor: Tensor) -> bytes:
        """Wire bytes of an fp32 tensor of any shape and device.

        Raises:
            NotFinite: it holds inf or nan.
        """

    @abstractmethod
    def decode(self, data: Buffer, shape: Sequence[int]) -> Tensor:
        """The fp32 tensor that wire bytes spell, on the CPU, in memory of its own.

        Raises:
            Malformed: another number of bytes than `shape` takes, or bytes that spell nothing.
            NotFinite: inf or nan among the elements.
        """

    def _checked(self, data: Buffer, shape: Sequence[int]) -> memoryview:
        view, wanted = memoryview(data).cast("B"), self._wire.num_bytes(prod(shape))
        if len(view) != wanted:
            name = self._wire.name
            raise Malformed(f"{len(view)} bytes, {wanted} are {list(shape)} under {name}")
        return view


class _Cast(Codec):
    """Elements one by one in a float format."""

    def __init__(self, wire: WireFormat, dtype: torch.dtype) -> None:
        super().__init__(wire)
        self._dtype, self._largest = dtype, torch.finfo(dtype).max

    def encode(self, tensor: Tensor) -> bytes:
        """See `Codec.encode`."""
        tensor = tensor.detach()
        need_finite(tensor, "a tensor to send")
        if self._dtype != torch.float32:
            tensor = tensor.clamp(-self._largest, self._largest).to(self._dtype)
        # numpy knows no bfloat16: the bytes leave as bytes
        return tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()

    def decode(self, data: Buffer, shape: Sequence[int]) -> Tensor:
        """See `Codec.decode`."""
        tensor = _bytes_tensor(self._checked(data, shape)).view(self._dtype).float()
        need_finite(tensor, "a received tensor")
        return tensor.reshape(tuple(shape))


class _Blockwise8(Codec):
    """A scale for each block, its largest magnitude, and for each element the nearest code of it.

    "Nearest" is decided on the quotient cut to 12 significant bits, for which there is a table of
    2^20 places: twenty times faster than a search. One element in 300, less than 2^-11 of itself
    from the middle between two codes, gets the other one.
    """

    def __init__(self, wire: WireFormat) -> None:
        super().__init__(wire)
        assert wire.block is not None  # the one format with blocks
        self._block = wire.block

    def encode(self, tensor: Tensor) -> bytes:
        """See `Codec.encode`."""
        flat = tensor.detach().flatten()
        need_finite(flat, "a tensor to send")
        missing = -len(flat) % self._block
        blocks = torch.nn.functional.pad(flat, (0, missing)).view(-1, self._block)
        scales = blocks.abs().amax(dim=1)
        quotients = blocks / torch.where(scales == 0, 1, scales).unsqueeze(1)
        places = (quotients.view(torch.int32) >> _CUT_BITS) & (_num_cut() - 1)
        chosen = _code_table().to(flat.device).index_select(0, places.flatten())
        scale_bytes: bytes = scales.cpu().numpy().tobytes()
        return scale_bytes + chosen[: len(flat)].cpu().numpy().tobytes()

    def decode(self, data: Buffer, shape: Sequence[int]) -> Tensor:
        """See `Codec.decode`."""
        view, num_elements = self._checked(data, shape), prod(shape)
        num_scale_bytes = len(view) - num_elements
        scales = _bytes_tensor(view[:num_scale_bytes]).view(torch.float32)
        chosen = _bytes_tensor(view[num_scale_bytes:])
        _need_scales(scales)
        if bool((chosen == _UNUSED).any()):
            raise Malformed(f"an element is {_UNUSED}, which is no code")
        values = _codes().index_select(0, chosen.int())
        missing = -num_elements % self._block
        blocks = torch.nn.functional.pad(values, (0, missing)).view(-1, self._block)
        blocks = blocks * scales.unsqueeze(1)
        return blocks.flatten()[:num_elements].reshape(tuple(shape))


_UNUSED = 255


def _need_scales(scales: Tensor) -> None:
    need_finite(scales, "a received scale")
    if bool((scales < 0).any()):
        raise Malformed("a scale is negative")


def _bytes_tensor(view: memoryview) -> Tensor:
    """A copy: what arrived may be read-only, and its owner may go on using it."""
    return torch.from_numpy(np.frombuffer(view, dtype=np.uint8).copy())


def _num_cut() -> int:
    return 1 << (32 - _CUT_BITS)


@cache
def _codes() -> Tensor:
    return torch.tensor([float(code) for code in codes()], dtype=torch.float32)


@cache
def _code_table() -> Tensor:
    """Place of the nearest code for every fp32 that is cut to its upper 20 bits."""
    upper = torch.arange(_num_cut(), dtype=torch.int64) << _CUT_BITS
    signed = torch.where(upper < 2**31, upper, upper - 2**32).to(torch.int32)
    limits = torch.tensor([float(border) for border in borders()], dtype=torch.float32)
    return torch.bucketize(signed.view(torch.float32), limits).to(torch.uint8)


_BUILDERS: Mapping[CodecName, Callable[[WireFormat], Codec]] = {
    "none": lambda wire: _Cast(wire, torch.float32),
    "float16": lambda wire: _Cast(wire, torch.float16),
    "bfloat16": lambda wire: _Cast(wire, torch.bfloat16),
    "blockwise8": _Blockwise8,
}


@cache
def codec(name: CodecName) -> Codec:
    """The codec that a JobSpec names."""
    return _BUILDERS[name](FORMATS[name])
