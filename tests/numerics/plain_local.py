"""A job of local steps without a swarm: one loop does what each merged claim says."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from contracts.terms.ids import Digest
from contracts.terms.messages import MILLION, JobSpec
from contracts.terms.work import WorkClaim, tensor_name
from training.averaging.slices import in_peer_order
from training.data.loading import UnitRows
from training.stages.exact import Moments, tensors_root, weighted_mean
from training.stages.stage import Stage, UnitInputs
from training.strategies.local.inner import Replica
from training.strategies.local.outer import apply_outer, apply_root
from training.strategies.local.recipe import LocalRecipe
from training.strategies.local.rules import GROUP


class Plain:
    """The weights after the updates of a job; claims weigh as their rows, so none may be gated."""

    def __init__(
        self,
        spec: JobSpec,
        rows: UnitRows,
        merged: Mapping[int, Sequence[WorkClaim]],
        frozen: Mapping[str, Tensor] | None = None,
        ahead: Mapping[Digest, int] | None = None,
    ) -> None:
        """Of `merged`, the claims of each update by its round.

        `ahead`: how many items of a claim were computed ahead of its round.
        """
        self._recipe, self._rows, self._ahead = LocalRecipe(spec), rows, ahead or {}
        config = self._recipe.config
        self.stage = Stage(config.model, self._recipe.slice, config.optimizer, frozen=frozen)
        self.weights = self.stage.flat_weights.clone()
        self._momentum = torch.zeros_like(self.weights)
        is_mean, zero = spec.batch.num_vectors > 1, torch.zeros_like(self.weights)
        self._moments = Moments(zero, zero) if is_mean else None
        self._bases: dict[int, tuple[Tensor, Moments | None]] = {}  # by the next update
        for step, claims in merged.items():
            self._bases[step] = self.weights.clone(), self._moments
            self._update(in_peer_order(claims, (0,)))

    def _update(self, claims: Sequence[WorkClaim]) -> None:
        differences = [self._sent(claim) for claim in claims]
        mean = weighted_mean(differences, [len(claim.numbers) for claim in claims])
        codec, local = self._recipe.codec, self._recipe.local
        mean = torch.cat([
            codec.read_mean(codec.mean(mean[a:b]), b - a) for a, b in self._recipe.bounds
        ])  # fmt: skip
        rate, mu = local.outer_rate / MILLION, local.outer_momentum / MILLION
        mean, *moments = mean.split(len(self.weights))
        apply_outer(self.weights, self._momentum, mean, rate=rate, mu=mu)
        if moments:
            exp_avg, exp_avg_sq = moments[0].clone(), torch.empty_like(moments[1])
            apply_root(exp_avg, exp_avg_sq, moments[1], self._recipe.config.optimizer)
            self._moments = Moments(exp_avg, exp_avg_sq)

    def _sent(self, claim: WorkClaim) -> Tensor:
        """The difference that a claim gives."""
        recipe, local = self._recipe, self._recipe.local
        replica = Replica(self.stage, rewarm_steps=local.rewarm_steps)
        weights, moments = self._bases[min(step for step in self._bases if step >= claim.round)]
        num_ahead = self._ahead.get(claim.digest(), 0)
        before = max((step for step in self._bases if step < claim.round), default=0)
        self.stage.flat_weights.copy_(self._bases[before][0] if num_ahead else weights)
        rounds = claim.numbers[0] // recipe.batch.units_per_step
        replica.start(rounds * local.segments * local.inner_steps, moments)
        for number, item in enumerate((*claim.numbers, None)):
            if number == num_ahead > 0:
                replica.rebase(weights)
            if item is None:
                break
            for rows_RT in recipe.steps(self._rows.read(tensor_name("rows", GROUP, item))):
                replica.step({item: UnitInputs(rows_RT=rows_RT)})
        shards = recipe.shards(replica.difference(), claim.base, claim.numbers[0])
        return torch.cat(recipe.difference([data for _, data in shards]))

    def root(self) -> Digest:
        """Of the weights."""
        return tensors_root(self.stage.layout.views(self.weights).items())
