"""The sealed state of a replica, and the working one that its round changes, with torch.

Sealed are the weights, the outer momentum, with `moments: mean` those of the inner steps, with
`overlap` the weights before the newest update, on which items are computed ahead, and how many
items the seals so far cover, from which their schedule goes on. All of it stays as it is while a
round is in work.
"""

from pathlib import Path

import torch

from contracts.terms.ids import Digest, StageIndex
from training.stages.exact import Moments
from training.stages.sealed_state import EXP_AVG, EXP_AVG_SQ, MOMENTUM, PREVIOUS, SealedState
from training.stages.stage import Stage
from training.stages.torch_free import StateRoots
from training.strategies.local.recipe import LocalRecipe
from training.strategies.port import RoundNumber
from training.strategies.state_files import StateFiles


class LocalState(StateFiles):
    """See `port.State`; `stage` is what a round is computed in."""

    def __init__(self, group: StageIndex, recipe: LocalRecipe, stage: Stage) -> None:
        """Begin with the weights that `stage` has now."""
        self.stage, self._recipe = stage, recipe
        self.flat_weights = stage.flat_weights.clone()
        self.momentum = torch.zeros_like(self.flat_weights)
        beside, self.moments, self.previous = {MOMENTUM: self.momentum}, None, None
        if recipe.local.overlap:
            beside[PREVIOUS] = self.previous = stage.flat_weights.clone()
        if is_mean := recipe.local.moments == "mean":
            zeros = (torch.zeros_like(self.flat_weights) for _ in range(2))
            self.moments = Moments(*zeros)
            beside |= {EXP_AVG: self.moments.exp_avg, EXP_AVG_SQ: self.moments.exp_avg_sq}
        sealed = SealedState(stage.layout, self.flat_weights, beside)
        super().__init__(group, sealed, repeats_moments=is_mean or recipe.local.overlap)
        self._roots: StateRoots | None = None

    def updated(self, sealed_items: int) -> None:
        """Both vectors are those after a seal; so many items are covered now."""
        self.sealed.counter, self._roots = sealed_items, None

    def roots(self) -> StateRoots:
        """See `State.roots`; computed once a seal, as every vector is hashed for it."""
        if self._roots is None:
            self._roots = super().roots()
        return self._roots

    def load(self, path: Path, root: Digest | None = None) -> RoundNumber:
        """See `StateFiles.load`."""
        self._roots = None
        return super().load(path, root)

    def measure(self, seed: int) -> None:
        """See `State.measure`; the update of the optimizer is not in it."""
        for _ in range(self._recipe.local.inner_steps):
            self.stage.measure(seed, self._recipe.batch.rows_at_once)
