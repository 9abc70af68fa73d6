"""For all numbers: codecs keep their promises, and a mean is the mean, whoever sums it how."""

from fractions import Fraction
from typing import get_args

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from torch import Tensor

from contracts.terms.messages import NORM_SQUARED_SCALE, CodecName, GradientCodecName
from tests.support.examples import examples
from training.averaging.slices import slice_digest
from training.averaging.sums import mean_slice, slice_of, vector_of
from training.compression.codecs import codec
from training.compression.formats import BLOCK, FORMATS

Floats = NDArray[np.float32]
CODECS: tuple[CodecName, ...] = get_args(CodecName)
GRADIENT_CODECS: tuple[GradientCodecName, ...] = get_args(GradientCodecName)
ROUNDING = {"none": 24, "float16": 11, "bfloat16": 8}  # bits: of a normal number 2^-this at most
HALF_SMALLEST = {"none": 150, "float16": 25, "bfloat16": 134}  # bits: of a smaller one 2^-this

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
moderate = st.floats(-(2.0**15), 2.0**15, width=32)
weights = st.integers(1, 10**6)


def vectors(elements: st.SearchStrategy[float]) -> st.SearchStrategy[Tensor]:
    drawn = arrays(np.float32, st.integers(1, 40), elements=elements)
    return drawn.map(lambda values: torch.from_numpy(values.copy()))


@st.composite
def sums(draw: st.DrawFn) -> tuple[list[Tensor], list[int]]:
    """Parts of one chunk, and their weights."""
    num_parts, size = draw(st.integers(1, 5)), draw(st.integers(1, 20))
    part = arrays(np.float32, size, elements=moderate)
    parts = [torch.from_numpy(draw(part).copy()) for _ in range(num_parts)]
    return parts, [draw(weights) for _ in parts]


@given(name=st.sampled_from(CODECS), num_elements=st.integers(0, 5 * BLOCK))
def test_num_bytes__any_number_of_elements__is_read_back(
    name: CodecName, num_elements: int
) -> None:
    wire = FORMATS[name]

    assert wire.num_elements(wire.num_bytes(num_elements)) == num_elements


@given(name=st.sampled_from(CODECS), tensor=vectors(finite))
def test_decode__all_finite_numbers__come_out_finite_and_in_order(
    name: CodecName, tensor: Tensor
) -> None:
    data = codec(name).encode(tensor)
    decoded = codec(name).decode(data, tensor.shape)

    assert len(data) == FORMATS[name].num_bytes(len(tensor))
    assert torch.isfinite(decoded).all()
    ascending = tensor.argsort()
    assert (decoded[ascending].diff() >= 0).all()
    assert (decoded.sign() * tensor.sign() >= 0).all()


@given(name=st.sampled_from(CODECS), tensor=vectors(moderate))
def test_encode__decoded_numbers__same_bytes(name: CodecName, tensor: Tensor) -> None:
    tensor = torch.where(tensor.abs() < 2.0**-20, 0, tensor)  # codes of its scale are normal
    data = codec(name).encode(tensor)

    assert codec(name).encode(codec(name).decode(data, tensor.shape)) == data


@given(tensor=vectors(moderate))
def test_blockwise8__any_block__keeps_its_largest_and_moves_no_number_far(tensor: Tensor) -> None:
    tensor = torch.where(tensor.abs() < 2.0**-100, 0, tensor)
    decoded = codec("blockwise8").decode(codec("blockwise8").encode(tensor), tensor.shape)
    scale, moved = tensor.abs().max(), (decoded - tensor).abs()

    assert decoded.abs().max() == scale
    # Half a cell of the uppermost decade is 0.9 / 128, and what is less than 2^-11 of itself from
    # the middle may get the other code; below, cells are 22 % of a number at most, 45 % in the
    # lowest decade, below which everything is within that decade's first code of 0.
    assert (moved <= scale * (0.9 / 128 + 2.0**-11)).all()
    assert (moved <= tensor.abs() * 0.25 + scale * 3.3e-6).all()


@given(name=st.sampled_from(GRADIENT_CODECS), tensor=vectors(moderate))
def test_slice_of__any_codec__speaks_of_the_numbers_that_arrive(
    name: GradientCodecName, tensor: Tensor
) -> None:
    piece = slice_of(tensor, name)

    arrived = [Fraction(value) for value in vector_of(piece.data, name).tolist()]
    exact = sum((value * value for value in arrived), Fraction(0)) * NORM_SQUARED_SCALE
    assert abs(piece.norm_squared - exact) <= 1 + exact * Fraction(1, 10**12)
    assert piece.digest == slice_digest(piece.data, name)
    others = {
        slice_digest(piece.data, other) for other in GRADIENT_CODECS if _fits(piece.data, other)
    }
    assert len(others) == sum(_fits(piece.data, other) for other in GRADIENT_CODECS)


def _fits(data: bytes, name: GradientCodecName) -> bool:
    return len(data) % FORMATS[name].element_bytes == 0


@given(name=st.sampled_from(GRADIENT_CODECS), drawn=sums())
def test_mean_slice__any_parts__is_the_exact_mean_within_rounding(
    name: GradientCodecName, drawn: tuple[list[Tensor], list[int]]
) -> None:
    parts, counts = drawn
    sent = [slice_of(part, name).data for part in parts]

    mean = vector_of(mean_slice(sent, counts, name).data, name)

    columns = zip(*(vector_of(data, name).tolist() for data in sent), strict=True)
    for found, column in zip(mean.tolist(), columns, strict=True):
        terms = [Fraction(value) * count for value, count in zip(column, counts, strict=True)]
        exact = sum(terms, Fraction(0)) / sum(counts)
        size = sum(map(abs, terms), Fraction(0)) / sum(counts)
        # Three roundings a term in fp32 (weight, product, addition), one by the codec.
        fp32 = size * (2 + len(parts)) / 2**24 + Fraction(len(parts), 2**149)
        rounding = (abs(exact) + fp32) / 2 ** ROUNDING[name]
        rounding += Fraction(1, 2 ** HALF_SMALLEST[name])
        assert abs(Fraction(found) - exact) <= fp32 + rounding


@given(drawn=sums())
def test_mean_slice__without_codec__is_the_sum_in_order_byte_for_byte(
    drawn: tuple[list[Tensor], list[int]],
) -> None:
    parts, counts = drawn
    expected: Floats = np.zeros(len(parts[0]), dtype=np.float32)
    for part, count in zip(parts, counts, strict=True):
        expected += part.numpy() * np.float32(count / sum(counts))

    mean = mean_slice([slice_of(part).data for part in parts], counts)

    assert mean.data == expected.astype("<f4").tobytes()


@given(name=st.sampled_from(GRADIENT_CODECS), count=weights, tensor=vectors(moderate))
def test_mean_slice__one_part__is_that_part(
    name: GradientCodecName, count: int, tensor: Tensor
) -> None:
    sent = slice_of(tensor, name)

    mean = mean_slice([sent.data], [count], name)

    assert torch.equal(vector_of(mean.data, name), vector_of(sent.data, name))
    assert mean.norm_squared == sent.norm_squared


@settings(max_examples=examples(3))
@given(
    seed=st.integers(0, 2**32 - 1),
    name=st.sampled_from(GRADIENT_CODECS),
    cut=st.integers(1, 99_999),
)
def test_mean_slice__other_threads_or_chunks__same_bytes(
    seed: int, name: GradientCodecName, cut: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randn(100_000, generator=generator) for _ in range(3)]
    counts = [3, 1, 7]

    def mean_of(bounds: slice) -> bytes:
        return mean_slice([slice_of(part[bounds], name).data for part in parts], counts, name).data

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        whole = mean_of(slice(None))
        torch.set_num_threads(2)
        assert mean_of(slice(None, cut)) + mean_of(slice(cut, None)) == whole
    finally:
        torch.set_num_threads(threads)
