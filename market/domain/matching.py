"""Which offers may serve a job, and if too few do: which constraint excludes how many. Pure.

Invariant: `feasible` and `why_not` use the same table of constraints, so an offer is feasible
exactly when no constraint excludes it. A relaxation is the least change of the job (or, where the
job cannot change it, the state of the offer) that would admit one more offer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from contracts.terms.amounts import BaseUnits, PricePerPflop
from contracts.terms.moments import UnixMillis, UnixSeconds
from market.bodies.jobs import Excluded
from market.domain.auction import Ask
from market.domain.offers import Candidate, is_heard
from market.domain.reputation import is_trusted, standing
from verification.distances.thresholds import class_name


@dataclass(frozen=True)
class Need:
    """What a job asks of an offer."""

    price_ceiling: PricePerPflop
    memory_bytes: int
    min_stake: BaseUnits
    deadline: UnixSeconds
    now: UnixMillis
    devices: frozenset[str] | None = None
    """Classes whose work can be compared (`thresholds.class_name`); None: any will do."""


@dataclass(frozen=True)
class _Constraint:
    name: str
    holds: Callable[[Need, Candidate], bool]
    relaxation: Callable[[Need, Sequence[Candidate]], str]


def _cheapest(_: Need, failing: Sequence[Candidate]) -> str:
    return f"price_ceiling {min(each.price for each in failing)}"


def _roomiest(_: Need, failing: Sequence[Candidate]) -> str:
    return f"memory_bytes {max(each.memory_bytes for each in failing)}"


def _richest(_: Need, failing: Sequence[Candidate]) -> str:
    return f"min_stake {max(each.free_stake for each in failing)}"


def _longest(_: Need, failing: Sequence[Candidate]) -> str:
    return f"deadline {max(each.expires_at for each in failing)}"


def _soonest(_: Need, failing: Sequence[Candidate]) -> str:
    return f"wait until {min(each.available_from for each in failing)}"


def _is_measured(need: Need, offer: Candidate) -> bool:
    return need.devices is None or class_name(offer.device_class) in need.devices


def _measured(need: Need, _: Sequence[Candidate]) -> str:
    return f"a device of the calibration table: {', '.join(sorted(need.devices or ()))}"


_CONSTRAINTS = (
    _Constraint("price", lambda need, offer: offer.price <= need.price_ceiling, _cheapest),
    _Constraint("memory", lambda need, offer: offer.memory_bytes >= need.memory_bytes, _roomiest),
    _Constraint("stake", lambda need, offer: offer.free_stake >= need.min_stake, _richest),
    _Constraint("device", _is_measured, _measured),
    _Constraint("window", lambda need, offer: offer.expires_at >= need.deadline, _longest),
    _Constraint("start", lambda need, offer: offer.available_from * 1000 <= need.now, _soonest),
    _Constraint(
        "heartbeat",
        lambda need, offer: is_heard(offer.heard_at, need.now),
        lambda need, failing: "an agent that answers",
    ),
    _Constraint(
        "leased",
        lambda need, offer: not offer.leased,
        lambda need, failing: "wait for the end of its lease",
    ),
    _Constraint(
        "reputation",
        lambda need, offer: is_trusted(offer.reputation),
        lambda need, failing: "an account that was not found lying",
    ),
)

CONSTRAINTS = tuple(constraint.name for constraint in _CONSTRAINTS)
"""Names that `Excluded.constraint` may have."""


class Judged(NamedTuple):
    """An offer, and the names of the constraints that exclude it, in the order of the table."""

    offer: Candidate
    failed: tuple[str, ...]


def judge(need: Need, offers: Sequence[Candidate]) -> list[Judged]:
    """Hold every offer against every constraint, once."""
    table = [(constraint.name, constraint.holds) for constraint in _CONSTRAINTS]
    return [
        Judged(offer, tuple([name for name, holds in table if not holds(need, offer)]))
        for offer in offers
    ]


def feasible(need: Need, offers: Sequence[Candidate]) -> list[Ask]:
    """The asks of all offers that may serve the job."""
    return asks_of(judge(need, offers))


def asks_of(judged: Sequence[Judged]) -> list[Ask]:
    """The asks of offers that nothing excludes."""
    return [
        Ask(o.account, o.offer, o.price, standing(o.reputation))
        for o, failed in judged
        if not failed
    ]


def why_not(need: Need, offers: Sequence[Candidate]) -> tuple[Excluded, ...]:
    """For each constraint that excludes offers: how many, and what would admit one more."""
    return exclusions_of(need, judge(need, offers))


def exclusions_of(need: Need, judged: Sequence[Judged]) -> tuple[Excluded, ...]:
    """`why_not` of offers that are judged already.

    The relaxation is taken over offers that fail this constraint alone, if there are any: for them
    the change is enough by itself.
    """
    found = []
    for constraint in _CONSTRAINTS:
        failing = [offer for offer, failed in judged if constraint.name in failed]
        alone = [offer for offer, failed in judged if failed == (constraint.name,)]
        if failing:
            relaxed = constraint.relaxation(need, alone or failing)
            found.append(
                Excluded(constraint=constraint.name, offers=len(failing), would_fit=relaxed)
            )
    return tuple(found)
