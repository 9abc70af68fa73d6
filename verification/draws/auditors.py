"""Who may audit a draw, and in which order they are asked. Pure.

Nobody assigns and everybody derives: from the units of the drawn step, the leases, the list of
outside auditors, the convicts and the coin. Who is said to have left since changes nothing.

After a mismatch a quirk of one kind of device must not convict alone: the second auditor is asked
first among those on another device class than the first auditor's. That of the doer does not
matter, whose claim is what both are held against.

Invariant: auditors of a subject are of other owners than its doer, its worker and each other, and
of no convict's. Source: docs/protocol.md 4 and 5.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, islice
from typing import TypeAlias

from contracts.governance.checking import Terms
from contracts.terms.ids import Address, Digest, PeerId, StageIndex
from contracts.terms.messages import GradCommit
from verification.distances.thresholds import class_name
from verification.draws import economics
from verification.draws.cases import CONFIRMING, INSIDE, OUTSIDE, THIRD, Case
from verification.draws.rules import Rules
from verification.draws.selection import Subject, auditor_order

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
        """Auditors of a round: of the stage first, then of all that is staked.

        In a dispute those on another device class come first, in the stage and outside.
        """
        heard = (each.auditor for each in case.heard)
        taken = {self._owner(peer) for peer in (case.doer, case.worker, *heard)}
        far = {p: each.stake for p, each in self.rules.outside.items() if self._fits(p, taken)}
        near = {peer: units for peer, units in inside.items() if self._fits(peer, taken)}
        if case.round == CONFIRMING or case.kind == "report" or (case.round == THIRD and far):
            near = {}  # two owners of a stage must not outvote an honest one there
        inner = _each_owner_once(self._in_turn(case, subject, near, coin), self._owner)
        first = tuple(islice(inner, INSIDE))
        owners = {self._owner(peer) for peer in first}
        in_turn = self._in_turn(case, subject, far, coin)
        outer = (peer for peer in in_turn if self._owner(peer) not in owners)
        return (*first, *islice(outer, OUTSIDE))

    def _in_turn(
        self, case: Case, subject: Subject, weights: Weights, coin: Digest
    ) -> Iterator[PeerId]:
        apart = self._classes_apart(case)
        sought = {p: weight for p, weight in weights.items() if self._class(p) in apart}
        others = {p: weight for p, weight in weights.items() if p not in sought}
        return chain(auditor_order(coin, subject, sought), auditor_order(coin, subject, others))

    def _classes_apart(self, case: Case) -> frozenset[str]:
        """Device classes that a second auditor of a dispute shall be of; none in other rounds.

        Only those from which a verdict can follow: a report of another one would never count. Who
        decides between two that contradict each other is not to be chosen by choosing a device.
        """
        if case.accuser is None:
            return frozenset()
        claimed = (self._class(case.worker), self._class(case.doer))
        return frozenset(
            each
            for each in self.rules.table.classes
            if each != self._class(case.accuser)
            and all(self.rules.table.holds(each, other) for other in claimed)
        )

    def _fits(self, peer: PeerId, taken: set[Address]) -> bool:
        owner = self._owner(peer)
        # A friend who was convicted must not come back as another machine of the same wallet.
        return owner not in taken and owner not in map(self._owner, self.convicts)

    def _owner(self, peer: PeerId) -> Address:
        return self.rules.lease(self.terms, peer).account

    def _class(self, peer: PeerId) -> str:
        return class_name(self.rules.lease(self.terms, peer).device_class)


def _each_owner_once(
    peers: Iterable[PeerId], owner: Callable[[PeerId], Address]
) -> Iterator[PeerId]:
    """The first peer of each owner: several machines of one wallet are one auditor."""
    known = set[Address]()
    for peer in peers:
        if owner(peer) not in known:
            known.add(owner(peer))
            yield peer
