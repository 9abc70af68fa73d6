"""Do codecs lose no more than they say, and mean the same bytes to numpy as to torch?"""

from typing import get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from contracts.terms.errors import Malformed, NotFinite
from contracts.terms.messages import CodecName
from tests.support.tensors import relative_error, samples
from training.compression.code_book import codes
from training.compression.codecs import codec
from training.compression.formats import BLOCK, FORMATS

NAMES: tuple[CodecName, ...] = get_args(CodecName)
SEED = 0
SMALLEST = 2.0**-149  # of fp32
Floats = NDArray[np.float32]

# Relative L2 error of a million samples, beside the reference (training.md section 10), which has
# no row for bfloat16 and a linear code book in blockwise8: Gauss .0087, Laplace .0147, t3 .0475.
BOUNDS: dict[CodecName, dict[str, float]] = {
    "none": {"Gauss": 0.0, "Laplace": 0.0, "Student-t3": 0.0},
    "float16": {"Gauss": 2.1e-4, "Laplace": 2.1e-4, "Student-t3": 2.1e-4},
    "bfloat16": {"Gauss": 1.68e-3, "Laplace": 1.68e-3, "Student-t3": 1.68e-3},
    "blockwise8": {"Gauss": 0.0131, "Laplace": 0.0167, "Student-t3": 0.0203},
}


def numbers(num: int, seed: int = SEED) -> Tensor:
    """Values over many magnitudes, some whole blocks tiny."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(num, generator=generator)
    return values * 10 ** (12 * torch.rand(num, generator=generator) - 8)


def numpy_blockwise8(values: Floats) -> bytes:
    """The definition: no table, no padding, one element after the other's block."""
    book = np.array([float(code) for code in codes()], dtype=np.float32)
    middles = ((book[1:].astype(np.float64) + book[:-1].astype(np.float64)) / 2).astype(np.float32)
    scales, places = [], []
    for start in range(0, len(values), BLOCK):
        block = values[start : start + BLOCK]
        scale = np.abs(block).max()
        quotients = block / (scale if scale else np.float32(1))
        cut = (quotients.view(np.uint32) & np.uint32(0xFFFFF000)).view(np.float32)
        scales.append(scale)
        places.append(np.searchsorted(middles, cut, side="left").astype(np.uint8))
    return np.array(scales, dtype="<f4").tobytes() + np.concatenate(places).tobytes()


def numpy_bytes(name: CodecName, values: Floats) -> bytes:
    match name:
        case "none":
            return values.astype("<f4").tobytes()
        case "float16":
            return np.clip(values, -65504, 65504).astype("<f2").tobytes()
        case "bfloat16":  # to nearest, ties to even, on the bits; the samples do not overflow
            bits = values.view(np.uint32)
            rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
            return (rounded >> np.uint32(16)).astype("<u2").tobytes()
        case "blockwise8":
            return numpy_blockwise8(values)


@pytest.mark.parametrize("name", NAMES)
def test_codec__samples_of_the_reference__are_changed_no_more_than_stated(name: CodecName) -> None:
    for distribution, tensor in samples(SEED).items():
        bound = BOUNDS[name][distribution]
        assert 0.95 * bound <= relative_error(codec(name), tensor) <= bound, distribution


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num", [1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 100_003])
def test_encode__as_numpy_does__same_bytes(name: CodecName, num: int) -> None:
    tensor = numbers(num)

    data = codec(name).encode(tensor)

    assert data == numpy_bytes(name, tensor.numpy())
    assert len(data) == FORMATS[name].num_bytes(num)


@pytest.mark.parametrize("name", NAMES)
def test_encode__other_threads_strides_and_shape__same_bytes(name: CodecName) -> None:
    tensor = numbers(300_000)
    data = codec(name).encode(tensor)
    torch.set_num_threads(2)
    strided = tensor.reshape(1000, 300).t().contiguous().t()

    assert codec(name).encode(tensor) == data
    assert codec(name).encode(strided) == data
    assert codec(name).encode(tensor.requires_grad_()) == data


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_encode__on_another_device__same_bytes(name: CodecName) -> None:
    tensor = numbers(300_000)

    assert codec(name).encode(tensor.cuda()) == codec(name).encode(tensor)


@pytest.mark.parametrize("name", NAMES)
def test_decode__what_was_encoded__has_its_shape_and_encodes_to_the_same(name: CodecName) -> None:
    data = codec(name).encode(numbers(3 * 5000).reshape(3, 5000))

    decoded = codec(name).decode(memoryview(data), (3, 5000))

    assert decoded.shape == (3, 5000) and decoded.dtype == torch.float32
    assert codec(name).encode(decoded) == data
    decoded.zero_()  # memory of its own
    assert codec(name).decode(data, (15_000,)).any()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [0.0, -0.0, SMALLEST, -3 * SMALLEST, 2.0**-126, 1e-6, -1.0])
def test_codec__a_block_of_one_number__keeps_it_or_its_nearest(
    name: CodecName, value: float
) -> None:
    tensor = torch.full((BLOCK + 3,), value)
    smallest = {"float16": 2.0**-24, "bfloat16": 2.0**-133}.get(name, SMALLEST)
    relative = {"float16": 2.0**-11, "bfloat16": 2.0**-8}.get(name, 0.0)

    decoded = codec(name).decode(codec(name).encode(tensor), tensor.shape)

    assert (decoded - tensor).abs().max() <= max(smallest / 2, abs(value) * relative)


def test_blockwise8__zeros_beside_an_outlier__stay_zero() -> None:
    tensor = torch.zeros(2 * BLOCK)
    tensor[5], tensor[BLOCK + 7] = 3.0e38, -SMALLEST

    assert torch.equal(
        codec("blockwise8").decode(codec("blockwise8").encode(tensor), (2 * BLOCK,)), tensor
    )


@pytest.mark.parametrize(
    ("name", "largest"), [("float16", 65504.0), ("bfloat16", 2.0**128 - 2.0**120)]
)
def test_encode__larger_than_the_format_holds__is_the_largest(
    name: CodecName, largest: float
) -> None:
    tensor = torch.tensor([3.4e38, -3.4e38])

    assert codec(name).decode(codec(name).encode(tensor), (2,)).tolist() == [largest, -largest]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_encode__not_finite__is_refused(name: CodecName, bad: float) -> None:
    tensor = torch.ones(BLOCK + 1)
    tensor[-1] = bad

    with pytest.raises(NotFinite):
        codec(name).encode(tensor)


@pytest.mark.parametrize("name", NAMES)
def test_decode__a_byte_more_or_less__is_refused(name: CodecName) -> None:
    data = codec(name).encode(numbers(10))

    for wrong in (data[:-1], data + b"\0", b""):
        with pytest.raises(Malformed):
            codec(name).decode(wrong, (10,))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("none", np.array([np.nan], dtype="<f4").tobytes()),
        ("float16", np.array([np.inf], dtype="<f2").tobytes()),
        ("bfloat16", np.array([0xFF80], dtype="<u2").tobytes()),
        ("blockwise8", np.array([np.inf], dtype="<f4").tobytes() + b"\x7f"),
    ],
)
def test_decode__bytes_of_inf_or_nan__are_refused(name: CodecName, data: bytes) -> None:
    with pytest.raises(NotFinite):
        codec(name).decode(data, (1,))


def test_decode__blockwise8_with_no_code_or_a_negative_scale__is_refused() -> None:
    one = np.array([1.0], dtype="<f4").tobytes()

    with pytest.raises(Malformed, match="no code"):
        codec("blockwise8").decode(one + b"\xff", (1,))
    with pytest.raises(Malformed, match="negative"):
        codec("blockwise8").decode(np.array([-1.0], dtype="<f4").tobytes() + b"\x00", (1,))
