"""What members of a job would lose by a conviction now, and how often they are drawn for it. Pure.

`economics` has the formulas; here they meet leases, the pay that waits and who works next door.
Coordinator and auditors reckon alike: the one hands out what q <= 1 covers, the others draw with q.
Units: base units, model FLOPs. Source: docs/protocol.md 7.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from contracts.governance.checking import Terms
from contracts.governance.pay import Lease
from contracts.terms.amounts import BaseUnits, Flops
from contracts.terms.ids import Address, PeerId, StageIndex, StepNumber
from verification.draws import economics
from verification.draws.auditors import Weights
from verification.draws.rules import Rules


@dataclass(frozen=True)
class MoneyAtRisk:
    """Of everybody who works or audits, as of one step."""

    rules: Rules
    terms: Terms
    step: StepNumber
    earned: Mapping[PeerId, Mapping[StepNumber, Flops]]  # recently
    frozen: frozenset[PeerId]

    def rate(self, peer: PeerId, work: Flops, phi: Fraction | None) -> Fraction:
        """q of a peer-step: the chance with which it is drawn."""
        lease = self.terms.leases[peer]
        return economics.rate(
            self.rules.terms,
            value=economics.value(work, lease.price),
            stake=self._stake(peer),
            waiting=self._waiting(peer, lease),
            power=self.rules.power(phi),
        )

    def repeat_rate(self, auditor: PeerId, work: Flops) -> Fraction:
        """The chance with which a report on so much work is repeated outside."""
        lease = self.rules.lease(self.terms, auditor)
        return economics.repeat_rate(
            self.rules.terms,
            value=economics.value(work, lease.price),
            stake=lease.stake,
            waiting=self._waiting(auditor, lease),
        )

    def most_units(self, stage: StageIndex, expected: Weights) -> Mapping[PeerId, int]:
        """See `Checking.most_units`."""
        owners = {peer: self.terms.leases[peer].account for peer in expected}
        found = {}
        for peer, own in owners.items():
            others = Counter[Address]()
            for mate, units in expected.items():
                if owners[mate] != own and units:
                    others[owners[mate]] += units
            phi = economics.largest_owner(others)
            work = economics.most_work(self._most_value(peer, phi), self.terms.leases[peer].price)
            found[peer] = work // self.rules.spec.unit_flops[stage]
        return found

    def _most_value(self, peer: PeerId, phi: Fraction | None) -> BaseUnits:
        return economics.most_value(
            self.rules.terms,
            stake=self._stake(peer),
            waiting=self._waiting(peer, self.terms.leases[peer]),
            power=self.rules.power(phi),
        )

    def _waiting(self, peer: PeerId, lease: Lease) -> BaseUnits:
        """U: what a peer earned in the W steps before this one and is not frozen."""
        if peer in self.frozen:
            return BaseUnits(0)
        recent = self.earned.get(peer, {})
        window = self.rules.terms.window
        return economics.waiting(recent, lease.price, step=self.step, window=window)

    def _stake(self, peer: PeerId) -> BaseUnits:
        """S: what a conviction takes of a member's stake; nothing if its owner works next door.

        With a peer in a stage beside it, an owner may hold all copies of a boundary tensor, and can
        lose them when it is drawn: that costs waiting pay and no stake (see `economics`).
        """
        members, leases = self.terms.members, self.terms.leases
        stage, own = members.get(peer), leases[peer].account
        is_next_door = stage is not None and any(
            abs(other - stage) == 1 and leases[mate].account == own
            for mate, other in members.items()
        )
        return BaseUnits(0) if is_next_door else leases[peer].stake
