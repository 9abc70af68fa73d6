"""What never changes in a checked job: its numbers, and who may audit it from outside. Pure.

The poster has signed the numbers, and the coordinator's opening names the list of outside auditors.
Units: base units, model FLOPs. Source: docs/protocol.md 2 and 7.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from contracts.governance.checking import Terms
from contracts.governance.pay import Lease
from contracts.terms.amounts import PricePerPflop
from contracts.terms.auditors import AuditorList
from contracts.terms.errors import Refused
from contracts.terms.ids import JobId, PeerId
from contracts.terms.messages import AuditSpec, JobSpec
from verification.distances.thresholds import Calibration
from verification.draws import economics
from verification.draws.cases import Case


@dataclass(frozen=True)
class Rules:
    """What never changes in a job."""

    job: JobId
    spec: JobSpec
    audit: AuditSpec
    table: Calibration
    outside: Mapping[PeerId, Lease]  # their stake, and the price of an outside audit

    @cached_property
    def terms(self) -> economics.Terms:
        """The numbers as rationals; where nobody is outside, nothing is repeated."""
        terms = economics.terms_of(self.audit, self.spec.rules.vesting_window)
        return terms if self.outside else replace(terms, repeats=Fraction(0))

    def power(self, phi: Fraction | None) -> Fraction:
        """d of a peer-step; zero where there is nobody at all to see it."""
        if phi is None and not self.outside:
            return Fraction(0)
        return economics.power(self.terms, phi)

    def lease(self, terms: Terms, peer: PeerId) -> Lease:
        """Of a member or an outside auditor."""
        return terms.leases.get(peer) or self.outside[peer]

    @property
    def dearest(self) -> PricePerPflop:
        """The most that an audit is paid by, inside or outside."""
        return max(self.audit.price, self.spec.price_ceiling)

    @cached_property
    def step_audits(self) -> int:
        """FLOPs of the audits of a step that is drawn whole."""
        flops = sum(self.spec.unit_flops) * self.spec.batch.units_per_step
        return economics.audits_at_once(self.terms, flops)

    def audits_of(self, case: Case) -> int:
        """FLOPs of the audits that a case may need; a report is repeated once."""
        if case.kind == "report":
            return case.flops
        return economics.audits_at_once(self.terms, case.flops)


def rules_of(spec: JobSpec, outside: AuditorList, table: Calibration) -> Rules:
    """The rules of a job whose spec has an audit.

    Raises:
        Refused: verdicts are to follow from another calibration table.
    """
    audit = spec.rules.audit
    assert audit is not None  # else nobody checks anything
    if table.digest() != audit.thresholds:
        raise Refused("the job names another calibration table", thresholds=audit.thresholds.hex())
    leases = {
        each.peer: Lease(each.account, audit.price, each.stake, each.device_class)
        for each in outside.auditors
    }
    return Rules(spec.job(), spec, audit, table, leases)
