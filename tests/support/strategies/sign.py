"""A second strategy, to show what one costs: the passes of `every_step`, and signs as gradients.

    shard  = sign(mean gradient of the peer's items)
    bucket = sign(sum of weight x shard)
    weights = weights - rate x bucket

Peers vote on the direction of each element (signSGD with majority vote, Bernstein 2018,
1802.05957). There are no moments; signs travel under the gradient codec.
"""

from collections.abc import Iterable, Iterator

import torch
from typing_extensions import Buffer

from contracts.terms.messages import Seal
from training.averaging.sums import slice_of, vector_of
from training.stages.stage import Stage
from training.stages.torch_free import learning_rate
from training.strategies.every_step.recipe import Recipe, output_of
from training.strategies.every_step.strategy import EveryStepWithTorch
from training.strategies.port import Bucket, Group, Piece, Shard, State, Weights
from training.strategies.state_files import StageState


class SignRecipe(Recipe):
    """Numbers and bytes of a stage."""

    def shards(self, stage: Stage) -> Iterable[Piece]:
        """See `Recipe.shards`."""
        buckets = stage.mean_buckets(self.batch.chunks)
        for number, bucket in zip(self.buckets, buckets, strict=True):
            made = slice_of(bucket.sign(), self.gradient_codec)
            yield output_of(number, made), made.data


class Sign(EveryStepWithTorch):
    """See `Strategy`."""

    def recipe(self, group: Group) -> Recipe:
        """The numeric recipe of a stage; raises Refused."""
        return SignRecipe(self.spec, group)

    def reduce(self, bucket: Bucket, shards: Iterator[Shard], weights: Weights) -> Piece:
        """See `Strategy.reduce`."""
        codec = self.spec.rules.mean_codec
        _, mean = super().reduce(bucket, shards, weights)
        made = slice_of(vector_of(mean, codec).sign(), codec)
        return output_of(bucket[1], made), made.data

    def apply(self, state: State, buckets: Iterator[Buffer], seal: Seal) -> StageState:
        """See `Strategy.apply`."""
        assert isinstance(state, StageState)
        stage, codec = state.stage, self.spec.rules.mean_codec
        rate = learning_rate(stage.optimizer, stage.counter)
        signs = torch.cat([vector_of(bucket, codec) for bucket in buckets])
        for name, moves in stage.layout.views(signs).items():
            stage.weights()[name].sub_(moves * rate)
        stage.counter += 1
        return state
