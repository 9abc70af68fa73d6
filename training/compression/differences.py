"""Codes of an outer difference: few bits an element, seeded rounding, scales that are powers of 2.

Invariants
- Equal numbers and equal seeds give equal bytes on every device: powers of two scale exactly, and
  an element is rounded by one addition of a fraction that a counter-based generator draws.
- Rounding is unbiased: E[decode(encode(x))] = x for every element that its block can hold. So the
  error of a mean falls with the number of replicas, and no residual has to be carried.
- A peer cannot choose its rounding: the seed is a digest of the sealed base, items and bucket.

Blocks of 64 elements share a scale 2^e, the smallest that holds all of them in codes from -L
to L, where L = 2^(bits - 1) - 1. A smaller power of two would cut the largest, a larger one would
double the error of all others. With one scale for 4,096 elements the relative error of 4 bits is
0.65 to 0.87 on heavy tails, with one for 64 it is 0.25 to 0.37.

Wire form: one signed byte of e for each block (-128: all zero), then the codes in two's complement;
of 4 bits two in a byte, the earlier one in the lower half.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Buffer

from contracts.terms.messages import SeededCodecName
from training.compression.formats import SEEDED, SEEDED_BLOCK
from training.compression.seeded import ZERO_BLOCK, decode_seeded, largest_code
from training.philox import philox_bytes
from training.stages.exact import need_finite

_LARGEST = 126  # 2^126 and 2^-126 are both normal numbers
_FRACTION = 2.0**-16  # unit of what is added before an element is rounded down


def encode(vector: Tensor, codec: SeededCodecName, seed: bytes) -> bytes:
    """Wire bytes of an fp32 vector (P,).

    Args:
        vector: The numbers.
        codec: How many bits an element has.
        seed: 32 bytes, of the rounding.

    Raises:
        NotFinite: inf or nan.
    """
    need_finite(vector, "a difference to send")
    blocks = _blocks(vector)
    limit = float(largest_code(codec))
    # max / L = m 2^e with m in [0.5, 1): at m = 0.5 one power less holds it too.
    fraction, exponents = torch.frexp(blocks.abs().amax(dim=1) / limit)
    exponents = (exponents - (fraction == 0.5).int()).clamp(-_LARGEST, _LARGEST)
    exponents[fraction == 0] = ZERO_BLOCK
    scaled = torch.ldexp(blocks, -exponents.unsqueeze(1))
    scaled += _fractions(seed, blocks.numel()).view(-1, SEEDED_BLOCK)
    codes = scaled.floor_().clamp_(-limit, limit).to(torch.int8).flatten()
    data = exponents.to(torch.int8).numpy().tobytes()
    return data + _packed(codes[: len(vector)], SEEDED[codec].bits)


def decode(data: Buffer, num_elements: int, codec: SeededCodecName) -> Tensor:
    """The fp32 vector that wire bytes spell, on the CPU; raises as `decode_seeded`."""
    return torch.from_numpy(decode_seeded(data, num_elements, codec))


def nearest(vector: Tensor, data: Buffer, codec: SeededCodecName, seed: bytes) -> Tensor:
    """Of all vectors that encode to `data` under `seed` the one next to `vector`, fp32 (P,).

    Whoever computed `vector` with other last digits, and encoded that, is no farther from it than
    before; whoever encoded other numbers is farther by what has moved codes. Raises as `decode`.
    """
    sent = decode(data, len(vector), codec)
    num_blocks = -(-len(vector) // SEEDED_BLOCK)
    exponents = torch.frombuffer(bytearray(memoryview(data)[:num_blocks]), dtype=torch.int8).int()
    limit, is_zero = float(largest_code(codec)), exponents == ZERO_BLOCK
    exponents = exponents.masked_fill(is_zero, 0).unsqueeze(1)
    fractions = _fractions(seed, num_blocks * SEEDED_BLOCK).view(-1, SEEDED_BLOCK)
    codes = torch.ldexp(_blocks(sent), -exponents)
    low, high = ((codes - fractions + k).clamp(-limit, limit) for k in (0, 1))
    found = _blocks(vector).clamp(torch.ldexp(low, exponents), torch.ldexp(high, exponents))
    # The scale is the smallest that holds the largest element: this is more than half of its most.
    least = torch.ldexp(torch.full(exponents.shape, limit), exponents - 1)
    places = found.abs().argmax(dim=1, keepdim=True)
    largest = found.gather(1, places)
    raised = torch.copysign(torch.maximum(largest.abs(), least), largest)
    found.scatter_(1, places, raised)
    found[is_zero] = 0
    return found.flatten()[: len(vector)]


def _blocks(vector: Tensor) -> Tensor:
    padded = torch.nn.functional.pad(vector.detach().cpu(), (0, -len(vector) % SEEDED_BLOCK))
    return padded.view(-1, SEEDED_BLOCK)


def _fractions(seed: bytes, count: int) -> Tensor:
    # In [0, 1), 16 bits each.
    halves = philox_bytes(seed, 2 * count).view("<u2").astype(np.float32)
    return torch.from_numpy(halves).mul_(_FRACTION)


def _packed(codes: Tensor, bits: int) -> bytes:
    values: NDArray[np.uint8] = codes.numpy().view(np.uint8)
    if bits == 8:
        return values.tobytes()
    pairs = np.pad(values, (0, len(values) % 2)).reshape(-1, 2) & 15
    return (pairs[:, 0] | pairs[:, 1] << 4).tobytes()
