"""The weighted mean of parts, byte for byte the same wherever it is computed.

The numbers that the parts' bytes spell are added in fp32, one rounding an operation, in peer order
(`slices.in_peer_order`), each multiplied with fp32(weight / total), and the mean is rounded by the
codec (see `training.stages.exact`, `training.compression.codecs`). The mean of one part is it. A
chunk that two stages share is the sum of their means, in one go: the first stage's parts, then the
last stage's, each by the total of its own stage.
"""

from collections.abc import Iterable, Sequence

from torch import Tensor
from typing_extensions import Buffer

from contracts.terms.messages import GradientCodecName
from training.averaging.norms import norm_squared
from training.averaging.slices import Slice, slice_digest
from training.compression.codecs import codec as codec_named
from training.compression.formats import FORMATS
from training.stages.exact import weighted_mean


def slice_of(chunk: Tensor, codec: GradientCodecName = "none") -> Slice:
    """An fp32 vector as it is sent; the norm is that of what receivers will read.

    Raises:
        NotFinite: inf or nan.
    """
    data = codec_named(codec).encode(chunk)
    return Slice(data, slice_digest(data, codec), norm_squared(data, codec))


def vector_of(data: Buffer, codec: GradientCodecName = "none") -> Tensor:
    """The fp32 vector that wire bytes spell.

    Raises:
        Malformed: no whole number of elements. NotFinite: inf or nan.
    """
    num_elements = FORMATS[codec].num_elements(memoryview(data).nbytes)
    return codec_named(codec).decode(data, (num_elements,))


def mean_slice(
    parts: Iterable[Buffer],
    weights: Sequence[int],
    codec: GradientCodecName = "none",
    *,
    totals: Sequence[int] = (),
) -> Slice:
    """Mean of `parts` (wire bytes, in peer order) by `weights` (samples); one is here at a time.

    `totals` as in `weighted_mean`, for a chunk that two stages share.

    Raises:
        Malformed: parts of different lengths. Refused: none, or weights that do not fit.
        NotFinite: inf or nan.
    """
    vectors = (vector_of(part, codec) for part in parts)
    return slice_of(weighted_mean(vectors, weights, totals), codec)
