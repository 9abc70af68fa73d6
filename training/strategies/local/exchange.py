"""What replicas of the strategy `local` exchange in a round, as bytes and back, with torch.

A shard is the difference of one replica under the job's codec, a bucket the mean of shards, which
is rounded once more: in bfloat16, because a mean in four bits would be rounded a second time with
an error that no longer falls with the number of replicas.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import Buffer

from contracts.terms.messages import (
    GradientCodecName,
    ShardCodecName,
    is_seeded,
    mean_codec_of,
)
from training.compression import differences
from training.compression.codecs import codec

_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class LocalCodec:
    """How the differences of a job are written."""

    name: ShardCodecName

    @property
    def mean_name(self) -> GradientCodecName:
        """See `RulesSpec.mean_codec`."""
        return mean_codec_of(self.name)

    def shard(self, difference: Tensor, seed: bytes) -> bytes:
        """A difference (P,) as it travels; `seed`, 32 bytes, decides its rounding.

        Raises:
            NotFinite: inf or nan.
        """
        if is_seeded(self.name):
            return differences.encode(difference, self.name, seed)
        return codec(self.name).encode(difference)

    def read_shard(self, data: Buffer, num_elements: int) -> Tensor:
        """The difference that a shard spells, fp32 (P,); raises Malformed, NotFinite."""
        if is_seeded(self.name):
            return differences.decode(data, num_elements, self.name)
        return codec(self.name).decode(data, (num_elements,))

    def nearest(self, difference: Tensor, shard: Buffer, seed: bytes) -> Tensor:
        """Of all differences that are written as this shard the one next to `difference` (P,).

        A claim's own difference is among them, so honest replays are as near as without a codec,
        which would hide a difference scaled by a tenth. Raises as `read_shard`.
        """
        if is_seeded(self.name):
            return differences.nearest(difference, shard, self.name, seed)
        sent = self.read_shard(shard, len(difference))
        if self.name == "none":
            return sent
        # Half the distance of two neighbours in the format: what is nearer was rounded to `sent`.
        form = torch.finfo(_DTYPES[self.name])
        power = torch.ldexp(torch.ones_like(sent), torch.frexp(sent).exponent - 1)
        power = power.masked_fill(sent == 0, 0.0).clamp(min=form.smallest_normal)
        half = power * (form.eps / 2)
        return difference.cpu().clamp(sent - half, sent + half)

    def mean(self, mean: Tensor) -> bytes:
        """A mean of differences as it travels; raises NotFinite."""
        return codec(self.mean_name).encode(mean)

    def read_mean(self, data: Buffer, num_elements: int) -> Tensor:
        """The mean that a bucket spells, fp32 (P,); raises Malformed, NotFinite."""
        return codec(self.mean_name).decode(data, (num_elements,))
