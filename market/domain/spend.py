"""How fast a job spends, when it will end, and whether its budget lasts until then. Pure.

Taken from its newest seals, so it follows what the job does now. Whole numbers: paces are rounded
down, what is left to wait and to spend up. Units: base units, milliseconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from contracts.terms.amounts import BaseUnits
from contracts.terms.moments import UnixMillis
from market.bodies.running import OutlookView

RECENT = 16
"""Steps that a pace is taken of."""
MILLIS_AN_HOUR = 3_600_000


@dataclass(frozen=True)
class Sealed:
    """A seal: what all had earned by it, and when it came."""

    step: int
    earned: BaseUnits
    at: UnixMillis


@dataclass(frozen=True)
class Pace:
    """Over `steps` steps in `millis`, `spent` was earned; none of the two is 0."""

    steps: int
    millis: int
    spent: BaseUnits

    @property
    def millis_a_step(self) -> int:
        """Time from seal to seal."""
        return self.millis // self.steps

    @property
    def spent_a_step(self) -> BaseUnits:
        """What a step costs."""
        return BaseUnits(self.spent // self.steps)

    @property
    def spent_an_hour(self) -> BaseUnits:
        """What an hour costs."""
        return BaseUnits(self.spent * MILLIS_AN_HOUR // self.millis)


def pace_of(seals: Sequence[Sealed]) -> Pace | None:
    """The pace from the first of `seals` to the last; None of fewer than two, or of one moment."""
    if len(seals) < 2:
        return None
    first, last = seals[0], seals[-1]
    if last.step <= first.step or last.at <= first.at:
        return None
    return Pace(last.step - first.step, last.at - first.at, BaseUnits(last.earned - first.earned))


def outlook_of(
    pace: Pace,
    newest: Sealed,
    *,
    steps: int,
    budget: BaseUnits,
    epoch_cap: BaseUnits,
    epoch_millis: int,
) -> OutlookView:
    """What comes of a job of so many steps after its newest seal."""
    left = max(0, steps - newest.step)
    ends_at = UnixMillis(newest.at + _up(left * pace.millis, pace.steps))
    spent = BaseUnits(newest.earned + _up(left * pace.spent, pace.steps))
    an_epoch = BaseUnits(pace.spent * epoch_millis // pace.millis)
    is_short = spent > budget
    covered = max(0, budget - newest.earned) * pace.steps // pace.spent if is_short else 0
    spent_up = UnixMillis(newest.at + _up(covered * pace.millis, pace.steps))
    return OutlookView(
        steps_left=left,
        ends_at=ends_at,
        spent_then=spent,
        lasts=not is_short,
        spent_up_at_step=newest.step + covered + 1 if is_short else None,
        spent_up_at=spent_up if is_short else None,
        an_epoch=an_epoch,
        is_above_cap=an_epoch > epoch_cap,
    )


def _up(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)
