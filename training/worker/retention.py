"""How long work of sealed rounds stays here: until its draws are settled (docs/protocol.md 3.1).

Invariants: without checking a round's work goes with its seal, but for claims that a later round
may merge; with it nothing goes that may still be asked for, but never more than `most` rounds stay,
the newest (docs/protocol.md 7: memory); what was let go is not wanted again, so a round only ever
shrinks. Kept are, of a round: its boundary tensors, the shards of its gradients, and the weights
that it was computed on. Whoever follows the draws says from where on they are open, and of a round
whose beacon is known, what of it was drawn.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from contracts.terms.ids import Digest, StepNumber

_FIRST = StepNumber(0)


@dataclass(frozen=True)
class Retention:
    """The policy, as a value. `most` 0: nothing stays but what is pending."""

    most: int = 0
    keep_from: StepNumber = _FIRST
    """The oldest round whose draws are not settled, as far as we were told."""
    pending: frozenset[StepNumber] = frozenset()
    """Rounds with claims that no seal holds yet: all of their work stays."""
    needed: Mapping[StepNumber, frozenset[Digest]] = field(default_factory=dict)
    """Bytes of rounds whose beacon is known; of others everything."""

    def settled_before(self, round: StepNumber) -> "Retention":
        """No draw of an earlier round is open; what was said before stays said."""
        oldest = max(self.keep_from, round)
        needed = {of: what for of, what in self.needed.items() if of >= oldest}
        return replace(self, keep_from=oldest, needed=needed)

    def with_pending(self, rounds: Collection[StepNumber]) -> "Retention":
        """These are the rounds whose claims may still be merged."""
        return replace(self, pending=frozenset(rounds))

    def narrowed(self, round: StepNumber, digests: Collection[Digest]) -> "Retention":
        """Of `round` only this is still wanted; nothing, if it is empty."""
        before = self.needed.get(round)
        what = frozenset(digests) if before is None else before.intersection(digests)
        return replace(self, needed={**self.needed, round: what})

    def wanted(self, here: Iterable[StepNumber]) -> tuple[StepNumber, ...]:
        """Those of the rounds whose work is here that may still be asked for, ascending."""
        found = (
            round
            for round in here
            if round in self.pending
            or (self.most and round >= self.keep_from and self.needed.get(round, True))
        )
        return tuple(sorted(found))

    def kept(self, here: Iterable[StepNumber]) -> tuple[StepNumber, ...]:
        """Those of them that there is room for, ascending."""
        wanted = self.wanted(here)
        newest = wanted[-self.most :] if self.most else ()
        return tuple(sorted(self.pending.intersection(wanted).union(newest)))
