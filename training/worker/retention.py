"""How long work of sealed steps stays here: until its draws are settled (docs/protocol.md 3.1).

Invariants: without checking a step's work goes with its seal; with it nothing goes that may still
be asked for, but never more than `most` steps stay, the newest (docs/protocol.md 7: memory); what
was let go is not wanted again, so a step only ever shrinks.
Kept are, of a step: its boundary tensors, the parts of its gradients, and the weights that it was
computed on. Whoever follows the draws says from where on they are open, and of a step whose beacon
is known, what of it was drawn.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from contracts.terms.ids import Digest, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.messages import RulesSpec
from training.disk import MOST_STEPS

_FIRST = StepNumber(0)


@dataclass(frozen=True)
class Needed:
    """What of a step is still wanted: tensors of these units, parts of these GradCommits."""

    units: frozenset[ItemNumber] = frozenset()
    commits: frozenset[Digest] = frozenset()

    def __bool__(self) -> bool:
        """Whether anything is."""
        return bool(self.units or self.commits)


@dataclass(frozen=True)
class Retention:
    """The policy, as a value. `most` 0: nothing stays."""

    most: int = 0
    keep_from: StepNumber = _FIRST
    """The oldest step whose draws are not settled, as far as we were told."""
    needed: Mapping[StepNumber, Needed] = field(default_factory=dict)
    """Of steps whose beacon is known; of others everything."""

    def settled_before(self, step: StepNumber) -> "Retention":
        """No draw of an earlier step is open; what was said before stays said."""
        oldest = max(self.keep_from, step)
        needed = {of: what for of, what in self.needed.items() if of >= oldest}
        return replace(self, keep_from=oldest, needed=needed)

    def narrowed(
        self, step: StepNumber, units: Collection[ItemNumber], commits: Collection[Digest]
    ) -> "Retention":
        """Of `step` only this is still wanted; nothing, if both are empty."""
        before = self.needed.get(step, Needed(frozenset(units), frozenset(commits)))
        what = Needed(before.units.intersection(units), before.commits.intersection(commits))
        return replace(self, needed={**self.needed, step: what})

    def wanted(self, here: Iterable[StepNumber]) -> tuple[StepNumber, ...]:
        """Those of the steps whose work is here that may still be asked for, ascending."""
        open_steps = (step for step in here if step >= self.keep_from)
        return tuple(sorted(step for step in open_steps if self.needed.get(step, True)))

    def kept(self, here: Iterable[StepNumber]) -> tuple[StepNumber, ...]:
        """Those of them that there is room for, ascending."""
        return self.wanted(here)[-self.most :] if self.most else ()


def retention_of(rules: RulesSpec) -> Retention:
    """How a job begins: where nobody is drawn nothing stays."""
    return Retention(most=0 if rules.audit is None else MOST_STEPS)
