"""What does a schedule of cheating earn on average? Exact (docs/protocol.md 5 to 7, docs/odds.md).

- Step s vests when every draw up to step s + W is settled, so whoever is convicted of step t keeps
  what it did before step t - W and loses all later pay and its stake.
- A draw is settled `settling` steps after its step; until then the cheat works on, and that is lost
  as well. With `settling` 0 it knows at once that it was found, and works no more.
- Gain = vested pay - cost - lost stake. Honest work costs what it pays, a cheat costs nothing: the
  worst supposition for us. Whoever leaves unconvicted keeps everything, and so does who is there
  when the job ends: its `last` seal waits for every draw.

Draws are independent of each other, and nobody learns of a draw before its step is sealed, so the
expectation is a finite sum: found first in this cheat, in the next, ..., never. No sampling. Money
is in base units; one FLOP is priced at one base unit, so that a value is its own work.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate
from typing import TypeAlias

from contracts.terms.amounts import FLOPS_PER_PFLOP, BaseUnits, Flops, PricePerPflop
from contracts.terms.ids import StepNumber
from verification.draws.economics import Terms, most_value, power, rate, value, waiting

SETTLING = 4
"""Steps until a draw is settled: at most so many wait for their beacon (docs/protocol.md 4)."""

ONE_A_FLOP = PricePerPflop(FLOPS_PER_PFLOP)


@dataclass(frozen=True)
class Turn:
    """What a peer does in one step: work of this value, falsified or not. Value 0: it is idle."""

    value: int
    cheats: bool = False


Schedule: TypeAlias = Sequence[Turn]


@dataclass(frozen=True)
class Game:
    """A peer among its auditors."""

    terms: Terms
    stake: int
    phi: Fraction | None  # what the rate reckons with; None: nobody in the stage is eligible
    friends: Fraction  # chance that the first auditor is in fact a friend of the cheat
    settling: int = SETTLING
    _chances: dict[tuple[tuple[int, ...], int], Fraction] = field(
        default_factory=dict, compare=False, repr=False
    )

    def chance_found(self, before: tuple[int, ...], worth: int) -> Fraction:
        """That a cheat of `worth` is drawn and found.

        Args:
            before: Values of the steps before it, the newest last.
            worth: What is falsified.
        """
        unvested = before[-(self.terms.window + self.settling) :]
        if (unvested, worth) not in self._chances:  # a steady schedule asks the same all the time
            self._chances[unvested, worth] = self._rate(unvested, worth) * self.chance_seen()
        return self._chances[unvested, worth]

    def chance_seen(self) -> Fraction:
        """That a replay which was drawn ends in a mismatch.

        A friend says that all is well, and somebody else only looks if that report is repeated.
        """
        seen_by_friend = self.terms.repeats * self.terms.detection
        return self.friends * seen_by_friend + (1 - self.friends) * self.terms.detection

    def most(self, before: tuple[int, ...]) -> int:
        """What the router hands out at most after these steps."""
        return most_value(
            self.terms,
            stake=BaseUnits(self.stake),
            waiting=self._waiting(before),
            power=power(self.terms, self.phi),
        )

    def _rate(self, before: tuple[int, ...], worth: int) -> Fraction:
        return rate(
            self.terms,
            value=value(Flops(worth), ONE_A_FLOP),
            stake=BaseUnits(self.stake),
            waiting=self._waiting(before),
            power=power(self.terms, self.phi),
        )

    def _waiting(self, before: tuple[int, ...]) -> BaseUnits:
        work = {StepNumber(step): Flops(worth) for step, worth in enumerate(before, start=1)}
        now = StepNumber(len(before) + 1)
        return waiting(work, ONE_A_FLOP, step=now, window=self.terms.window)


def cheating(
    cheats: int, *, every: int = 1, start: int = 0, then: int = 0, worth: int = 1
) -> tuple[Turn, ...]:
    """`start` honest steps, `cheats` cheats in every `every`-th step, `then` honest ones.

    With `then` 0 it leaves after the last cheat, or the job ends there.
    """
    honest, cheat = Turn(worth), Turn(worth, cheats=True)
    gap = (honest,) * (every - 1)
    between = (*gap, cheat) * (cheats - 1)
    return (*(honest,) * start, cheat, *between, *(honest,) * then)


def expected_gain(game: Game, schedule: Schedule) -> Fraction:
    """What `schedule` earns on average beyond honest work, which earns nothing."""
    values = tuple(turn.value for turn in schedule)
    paid = (0, *accumulate(values))
    cost = (0, *accumulate(turn.value * (not turn.cheats) for turn in schedule))
    # From the last cheat to the first: what the rest is worth to whom nobody has found so far, as
    # gain / scale. One reduction at the end: hundreds of them would take most of the time.
    gain, scale = paid[-1] - cost[-1], 1
    for step in _cheats_of(schedule):
        found = game.chance_found(values[:step], values[step])
        if_found = _if_found(game, step, paid, cost)
        missed = found.denominator - found.numerator
        gain = missed * gain + found.numerator * if_found * scale
        scale *= found.denominator
    return Fraction(gain, scale)


def _cheats_of(schedule: Schedule) -> list[int]:
    return [step for step in reversed(range(len(schedule))) if schedule[step].cheats]


def _if_found(game: Game, step: int, paid: Sequence[int], cost: Sequence[int]) -> int:
    """What is left to whom the draw of `step` convicts (steps from 0; sums before each step)."""
    kept = paid[max(0, step - game.terms.window)]
    worked_on = min(len(cost) - 1, step + game.settling + 1)
    return kept - cost[worked_on] - game.stake
