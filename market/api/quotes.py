"""Quotes, and why a job is not matched, as the bodies of `/v1`: translation, no decision."""

from collections.abc import Sequence
from math import ceil

from market.bodies import AdviceView, ChangeView, Excluded, QuoteView, StageQuoteView
from market.domain.advice import Advice
from market.domain.matching import Exclusion
from market.domain.quote import Quote, StageQuote

MILLION = 10**6


def excluded(found: Sequence[Exclusion]) -> tuple[Excluded, ...]:
    """Why-not counts."""
    return tuple(
        Excluded(constraint=each.constraint, offers=each.offers, would_fit=each.would_fit)
        for each in found
    )


def advised(advice: Advice | None) -> AdviceView | None:
    """What would match a job."""
    if advice is None:
        return None
    changes = [{"key": each.key, "was": each.was, "to": each.to} for each in advice.changes]
    return AdviceView(
        changes=tuple(ChangeView.model_validate(each) for each in changes),
        size=ceil(advice.size * MILLION),
        budget=advice.budget,
    )


def quote_view(found: Quote) -> QuoteView:
    """A dry run."""
    return QuoteView(
        fits=found.fits,
        flops=found.flops,
        cost_at_ceiling=found.cost_at_ceiling,
        cost_at_asks=found.cost_at_asks,
        price_at_asks=found.price_at_asks,
        lowest_losing_ask=found.lowest_losing_ask,
        seconds=found.seconds,
        reasons=found.reasons,
        missing=found.missing,
        not_matched=excluded(found.not_matched),
        advice=advised(found.advice),
        verification_budget=found.verification_budget,
        budget_needed=found.budget_needed,
        epochs=found.epochs,
        epoch_cap_needed=found.epoch_cap_needed,
        offers=found.offers,
        owners=found.owners,
        slots=found.slots,
        spares=found.spares,
        reservable=found.reservable,
        stages=tuple(_stage(each) for each in found.stages),
    )


def _stage(found: StageQuote) -> StageQuoteView:
    return StageQuoteView(
        first_layer=found.first_layer,
        end_layer=found.end_layer,
        unit_flops=found.unit_flops,
        memory_bytes=found.memory_bytes,
        offers_with_memory=found.offers_with_memory,
        peers=found.peers,
        flops_per_second=found.flops_per_second,
        seconds=found.seconds,
    )
