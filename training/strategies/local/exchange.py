"""What replicas of the strategy `local` exchange in a round, as bytes and back, with torch.

A shard is the difference of one replica under the job's codec, a bucket the mean of shards, which
is rounded once more: in bfloat16, because a mean in four bits would be rounded a second time with
an error that no longer falls with the number of replicas. With `moments: mean` the moments travel
too, in `blockwise8`: the first as it is, the second as its root, whose range is half as wide.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from typing_extensions import Buffer

from contracts.terms.messages import CodecName
from training.compression import differences
from training.compression.codecs import codec
from training.compression.formats import FORMATS
from training.stages.exact import Moments

DifferenceCodec = Literal["none", "bfloat16", "seeded8", "seeded4"]
_BITS: Mapping[str, differences.Bits] = {"seeded8": 8, "seeded4": 4}
_MOMENTS: CodecName = "blockwise8"


@dataclass(frozen=True)
class LocalCodec:
    """How the differences of a job are written."""

    name: DifferenceCodec

    @property
    def _mean(self) -> CodecName:
        return "none" if self.name == "none" else "bfloat16"

    def shard(self, difference: Tensor, seed: bytes) -> bytes:
        """A difference (P,) as it travels; `seed`, 32 bytes, decides its rounding.

        Raises:
            NotFinite: inf or nan.
        """
        if self.name in _BITS:
            return differences.encode(difference, _BITS[self.name], seed)
        return codec(self._mean).encode(difference)

    def read_shard(self, data: Buffer, num_elements: int) -> Tensor:
        """The difference that a shard spells, fp32 (P,); raises Malformed, NotFinite."""
        if self.name in _BITS:
            return differences.decode(data, num_elements, _BITS[self.name])
        return codec(self._mean).decode(data, (num_elements,))

    def mean(self, mean: Tensor) -> bytes:
        """A mean of differences as it travels: fp32 only where shards are; raises NotFinite."""
        return codec(self._mean).encode(mean)

    def read_mean(self, data: Buffer, num_elements: int) -> Tensor:
        """The mean that a bucket spells, fp32 (P,); raises Malformed, NotFinite."""
        return codec(self._mean).decode(data, (num_elements,))

    def num_bytes(self, num_elements: int) -> tuple[int, int]:
        """Length of a shard, and of a mean."""
        mean = FORMATS[self._mean].num_bytes(num_elements)
        bits = _BITS.get(self.name)
        return (differences.num_bytes(num_elements, bits) if bits else mean), mean


def moments_shard(moments: Moments) -> tuple[bytes, bytes]:
    """Both moments (P,) as they travel; raises NotFinite."""
    return codec(_MOMENTS).encode(moments.exp_avg), codec(_MOMENTS).encode(
        moments.exp_avg_sq.sqrt()
    )


def read_moments(data: tuple[Buffer, Buffer], num_elements: int) -> Moments:
    """The moments that a shard spells, fp32 (P,) each; raises Malformed, NotFinite."""
    first, root = (codec(_MOMENTS).decode(part, (num_elements,)) for part in data)
    return Moments(first, root.square_())
