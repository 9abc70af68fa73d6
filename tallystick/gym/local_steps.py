"""Replicas that lie about their steps, or about what came of them. Needs torch.

Lies of a step change the gradient that it takes, and with it what its leaf says of it:

    skipped      the gradient of the step before is taken again
    stale rows   the rows of the step before are computed again
    half rows    half of the rows are
    bf16         weights are rounded to bfloat16 before the gradient

The others take every step, tell the truth about it, and exchange another difference. They change
it before it is encoded, so it travels under any codec, rounded by the seed that it has to be.

    scaled       times 1.01
    copied       that of the round before again
    embedding    the embedding of one token goes a tenth of the way to that of another one, which is
                 about as far as steps can move it: what is farther is refused unseen
    head         likewise its row of the head
    moments      with `moments: mean` roots of second moments are twice as large, so the next steps
                 of all are shorter
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor

from contracts.terms.errors import WrongConfiguration
from contracts.terms.items import ItemNumber
from contracts.terms.messages import GradientCodecName
from tallystick.gym.around import Around
from tallystick.gym.plan import Plan
from training.stages.stage import Stage, UnitInputs
from training.strategies.local.inner import REWARM_STEPS, Replica
from training.strategies.local.recipe import LocalRecipe
from training.strategies.port import Compute, RoundNumber, State
from training.worker.ports import MakeStrategy

SLIGHTLY, PART_OF_THE_WAY = 1.01, 0.1
TOKEN, OTHER_TOKEN = ord("e"), ord("z")
MATRICES = {"embedding": "model.embed_tokens.weight", "head": "lm_head.weight"}

Inputs: TypeAlias = Mapping[ItemNumber, UnitInputs]
Lies: TypeAlias = Callable[[int, ItemNumber], bool]
"""(step of the round from 0, item) -> whether it is a lie."""


class LyingReplica(Replica):
    """Lies in some of its steps."""

    def __init__(
        self, stage: Stage, lie: str, lies: Lies, *, rewarm_steps: int = REWARM_STEPS
    ) -> None:
        super().__init__(stage, rewarm_steps=rewarm_steps)
        self._lie, self._lies, self._number = lie, lies, 0
        self._before: tuple[Inputs, tuple[float, Tensor]] | None = None

    def gradient(self, items: Inputs) -> tuple[float, Tensor]:
        """See `Replica.gradient`."""
        lie = self._lie if self._lies(self._number, next(iter(items))) else ""
        found = self._false(lie, items)
        self._before, self._number = (items, found), self._number + 1
        return found

    def _false(self, lie: str, items: Inputs) -> tuple[float, Tensor]:
        rows, found = self._before or (items, None)
        match lie:
            case "skipped" if found is not None:
                return found
            case "stale rows":
                return super().gradient(rows)
            case "half rows":
                return super().gradient(_half(items))
            case "bf16":
                exact = self._stage.flat_weights.clone()
                self._stage.flat_weights.copy_(exact.bfloat16())
                try:
                    return super().gradient(items)
                finally:
                    self._stage.flat_weights.copy_(exact)
        return super().gradient(items)


def _half(items: Inputs) -> Inputs:
    halves = {}
    for item, inputs in items.items():
        assert inputs.rows_RT is not None
        halves[item] = UnitInputs(rows_RT=inputs.rows_RT[: len(inputs.rows_RT) // 2])
    return halves


class FalseDifference(Replica):
    """Takes every step, and says that something else came of it."""

    def __init__(
        self, stage: Stage, change: Callable[[Stage, Tensor], Tensor], *, rewarm_steps: int
    ) -> None:
        super().__init__(stage, rewarm_steps=rewarm_steps)
        self._change = change

    def difference(self) -> Tensor:
        """See `Replica.difference`."""
        return self._change(self._stage, super().difference())


def _towards_another_token(matrix: str, stage: Stage, difference: Tensor) -> Tensor:
    weights = stage.layout.views(stage.flat_weights)[matrix]
    rows = stage.layout.views(difference)[matrix]
    rows[TOKEN] += PART_OF_THE_WAY * (weights[TOKEN] - weights[OTHER_TOKEN])
    return difference


class LocalLiar(Around):
    """A strategy of local steps whose own work lies by a plan; replays of others' do not."""

    def __init__(
        self,
        make: MakeStrategy,
        compute: Compute,
        plan: Plan,
        codec: GradientCodecName,
        lie: str,
    ) -> None:
        super().__init__(make, compute)
        self._plan, self._lie = plan, lie
        self._working: Stage | None = None
        self._sent: dict[RoundNumber, Tensor] = {}  # the true differences of two rounds
        recipe = getattr(self._inner, "recipe", None)
        if not isinstance(recipe, LocalRecipe):
            raise WrongConfiguration("an adversary of local steps in a job of another strategy")
        self._recipe, self._honest = recipe, recipe.replica
        vars(recipe)["replica"] = self._replica

    def start(self, state: State, round: RoundNumber) -> None:
        """See `Strategy.start`."""
        self._working = getattr(state, "stage", None)
        super().start(state, round)

    def _replica(self, stage: Stage) -> Replica:
        if stage is not self._working:
            return self._honest(stage)
        rewarm_steps = self._recipe.local.rewarm_steps
        if self._lie in ("scaled", "copied", "moments", *MATRICES):
            return FalseDifference(stage, self._changed, rewarm_steps=rewarm_steps)
        return LyingReplica(stage, self._lie, self._lies, rewarm_steps=rewarm_steps)

    def _lies(self, step: int, item: ItemNumber) -> bool:
        """About all steps of an item; a step is skipped at the end of it alone."""
        is_last = (step + 1) % self._recipe.local.inner_steps == 0
        return self._plan.lies_about(self._round, item) and (self._lie != "skipped" or is_last)

    def _changed(self, stage: Stage, difference: Tensor) -> Tensor:
        before = [self._sent[round] for round in sorted(self._sent) if round < self._round][-1:]
        self._sent = {round: sent for round, sent in self._sent.items() if round < self._round}
        self._sent[self._round] = difference.clone()
        if not self._plan.lies_in(self._round):
            return difference
        if self._lie == "scaled":
            return torch.mul(difference, SLIGHTLY)
        if self._lie == "copied":
            return before[0] if before else difference
        if self._lie == "moments":
            difference[2 * stage.num_parameters :] *= 2
            return difference
        return _towards_another_token(MATRICES[self._lie], stage, difference)
