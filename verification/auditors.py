"""Who may audit a draw, and in which order they are asked. Pure.

Nobody assigns and everybody derives: from the units of the drawn step, the leases, the list of
outside auditors, the convicts and the coin. Who is said to have left since changes nothing.

Invariant: auditors of a subject are of other owners than its doer, its worker and each other, and
of no convict's. Source: PROTOCOL 4 and 5.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import TypeAlias

from contracts.governance.checking import Terms
from contracts.terms.ids import Address, Digest, PeerId, StageIndex
from contracts.terms.messages import GradCommit
from verification import economics
from verification.cases import CONFIRMING, INSIDE, OUTSIDE, THIRD, Case
from verification.draws import Subject, auditor_order
from verification.rules import Rules

Weights: TypeAlias = Mapping[PeerId, int]


@dataclass(frozen=True)
class Candidates:
    """Whom a seal may ask to audit."""

    rules: Rules
    terms: Terms
    convicts: frozenset[PeerId]

    def of_stage(
        self, stage: StageIndex, doer: PeerId, commits: Sequence[GradCommit]
    ) -> dict[PeerId, int]:
        """Peers of the stage and of other owners that worked in this step, by their units."""
        weights: Counter[PeerId] = Counter()
        for commit in commits:
            if commit.stage == stage and self._owner(commit.peer) != self._owner(doer):
                weights[commit.peer] += commit.num_units
        return dict(weights)

    def largest_owner(self, inside: Weights) -> Fraction | None:
        """Phi: the largest owner's part of those who may audit; None if there is nobody."""
        owners = Counter[Address]()
        for auditor, weight in inside.items():
            owners[self._owner(auditor)] += weight
        return economics.largest_owner(owners)

    def order(
        self, case: Case, subject: Subject, inside: Weights, coin: Digest
    ) -> tuple[PeerId, ...]:
        """Auditors of a round: of the stage first, then of all that is staked."""
        heard = (each.auditor for each in case.heard)
        taken = {self._owner(peer) for peer in (case.doer, case.worker, *heard)}
        far = {p: each.stake for p, each in self.rules.outside.items() if self._fits(p, taken)}
        near = {peer: units for peer, units in inside.items() if self._fits(peer, taken)}
        if case.round == CONFIRMING or case.kind == "report" or (case.round == THIRD and far):
            near = {}  # two owners of a stage must not outvote an honest one there
        inner = _each_owner_once(auditor_order(coin, subject, near), self._owner)
        first = tuple(islice(inner, INSIDE))
        owners = {self._owner(peer) for peer in first}
        outer = (p for p in auditor_order(coin, subject, far) if self._owner(p) not in owners)
        return (*first, *islice(outer, OUTSIDE))

    def _fits(self, peer: PeerId, taken: set[Address]) -> bool:
        owner = self._owner(peer)
        # A friend who was convicted must not come back as another machine of the same wallet.
        return owner not in taken and owner not in map(self._owner, self.convicts)

    def _owner(self, peer: PeerId) -> Address:
        return self.rules.lease(self.terms, peer).account


def _each_owner_once(
    peers: Iterable[PeerId], owner: Callable[[PeerId], Address]
) -> Iterator[PeerId]:
    """The first peer of each owner: several machines of one wallet are one auditor."""
    known = set[Address]()
    for peer in peers:
        if owner(peer) not in known:
            known.add(owner(peer))
            yield peer
