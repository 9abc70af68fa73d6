"""Why is a job not matched, and what is the least that would match it now? Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import Refused
from contracts.terms.messages import JobSpec
from market.bodies.jobs import AdviceView, ChangeView, Excluded
from market.domain.admission import could_be_posted, least_budget_at
from market.domain.bundles import Bundle
from market.domain.cuts import Cut, Terms, cut_of, other_cuts
from market.domain.matching import Judged, Need, asks_of, exclusions_of
from market.domain.relaxation import Change, least_relaxation


@dataclass(frozen=True)
class Advice:
    """The least change with which the job would be matched now, and what it would have to pay."""

    changes: tuple[Change, ...]
    size: Fraction  # see `relaxation`
    budget: BaseUnits  # the least that covers work and audits; so does an epoch_cap of as much


@dataclass(frozen=True)
class WhyNot:
    """Why a bundle is not complete, and what would complete it."""

    exclusions: tuple[Excluded, ...] = ()
    advice: Advice | None = None

    def shown_advice(self) -> AdviceView | None:
        """The advice as people are shown it, if there is one."""
        if (advice := self.advice) is None:
            return None
        changes = tuple(ChangeView.of(each) for each in advice.changes)
        return AdviceView.of(advice, changes=changes, size=ceil(advice.size * 10**6))


def why_no_bundle(
    spec: JobSpec,
    need: Need,
    judged: Sequence[Judged],
    missing: Bundle,
) -> WhyNot:
    """Why a bundle is not complete: `why_not`, after how many owners would do and how many fit.

    A bundle of which leases stand already is no other cut's, so only numbers are relaxed for it.
    """
    asks = asks_of(judged)
    owners = len({ask.seller for ask in asks})
    few = f"needs {missing.slots} owners, {owners} fit"
    short = Excluded(constraint="owners", offers=len(asks), would_fit=few)
    exclusions = ((short,) if 1 < missing.slots > owners else ()) + exclusions_of(need, judged)
    return WhyNot(exclusions, _advice(spec, need, judged, missing))


def _advice(spec: JobSpec, need: Need, judged: Sequence[Judged], missing: Bundle) -> Advice | None:
    signed = cut_of(spec)

    def admits(terms: Terms) -> bool:
        return could_be_posted(spec, terms if others else replace(terms, cut=signed))

    if missing.slots == signed.slots:
        cut, others = signed, _other_cuts(spec)
    else:  # what is missing beside leases that stand, whatever their stages
        cut, others = replace(signed, stages=1, peers_per_stage=missing.slots), ()
    found = least_relaxation(need, cut, others, judged, admits=admits)
    if found is None:
        return None
    return Advice(found.changes, found.size, least_budget_at(spec, found.terms.price_ceiling))


def _other_cuts(spec: JobSpec) -> tuple[Cut, ...]:
    try:
        return other_cuts(spec)
    except Refused:  # no model can be made of its numbers, which is a reason of its own
        return ()
