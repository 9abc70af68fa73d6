"""How likely is it that falsified peer-steps were never seen, and what does cheating earn? Pure.

Undetected means that nobody who would say so has replayed any of them: the product of 1 - q x d
over the falsified peer-steps, as an exact rational from the rates with which the job really drew
them. Three suppositions about who is a friend of the cheat: nobody; the owners whom the caller
names by their part of the eligible auditors; everybody in the stage, so that only outside auditors
who repeat a report see anything. Where nobody in the stage was eligible, an outside auditor comes
first and friends in the stage change nothing. The order of later auditors, in which device classes
count, changes nothing either: by then the work was seen.

A probability is never stated without the volume that it refers to. `worst_odds` supposes that the
cheat chose the peer-steps that are hardest to find. Source: docs/protocol.md 7, issue 5.

What a `Schedule` of cheating earns on average is exact, too (docs/protocol.md 5 to 7):

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

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Context, Decimal
from fractions import Fraction
from itertools import accumulate
from typing import Any, TypeAlias

from contracts.terms.amounts import FLOPS_PER_PFLOP, BaseUnits, Flops, PricePerPflop
from contracts.terms.errors import Malformed
from contracts.terms.ids import StepNumber
from verification.draws.economics import Terms, most_value, power, rate, value, waiting

VOLUMES = (1, 5)
"""Falsified peer-steps for which odds are stated, beside all that a peer did."""

Chances: TypeAlias = Counter[Fraction]

_STRANGERS, _WHOLE_STAGE = Fraction(0), Fraction(1)
_DECIMAL_DIGITS = 1_000  # longer integers are written in base 16; Python reads no long decimals
_SHOWN_DIGITS = 3
_WHOLE = r"[1-9][0-9]{0,999}|0x[1-9a-f][0-9a-f]*"
_EXACT = re.compile(rf"(0|{_WHOLE})/({_WHOLE})")


@dataclass(frozen=True)
class Exposed:
    """How one sealed peer-step could have been seen."""

    rate: Fraction  # q with which it was drawn, forced draws included
    phi: Fraction | None  # the supposed friends' part of the eligible; None: nobody was eligible


@dataclass(frozen=True)
class Odds:
    """P(undetected) of `falsified` peer-steps of one peer."""

    falsified: int
    strangers: Fraction  # no auditor is a friend
    friends: Fraction  # those counted in `Exposed.phi` are
    whole_stage: Fraction  # everybody in the stage is


def odds(terms: Terms, falsified: Sequence[Exposed]) -> Odds:
    """P(undetected) if exactly these peer-steps were falsified."""
    return worst_odds(terms, falsified, len(falsified))


def worst_odds(terms: Terms, peer_steps: Sequence[Exposed], falsified: int) -> Odds:
    """P(undetected) of the `falsified` peer-steps that are hardest to find, or all if fewer.

    What is hardest to find differs between the suppositions, so each has its own choice.
    """
    (found,) = _worst_odds(terms, peer_steps, [min(falsified, len(peer_steps))])
    return found


def stated_odds(
    terms: Terms, peer_steps: Sequence[Exposed], volumes: Iterable[int] = VOLUMES
) -> tuple[Odds, ...]:
    """What is said of a peer: `worst_odds` of each volume, and of all that it did.

    A volume that it did not do says nothing of it, and is left out.
    """
    counts = sorted({*volumes, len(peer_steps)})
    return _worst_odds(terms, peer_steps, [each for each in counts if each <= len(peer_steps)])


def _worst_odds(
    terms: Terms, peer_steps: Sequence[Exposed], counts: Iterable[int]
) -> tuple[Odds, ...]:
    alike = Counter(peer_steps)  # few differ, and each costs several exact fractions
    strangers, friends, stage = Chances(), Chances(), Chances()
    for each, number in alike.items():
        strangers[each.rate * power(terms, _supposed(each, _STRANGERS))] += number
        friends[each.rate * power(terms, each.phi)] += number
        stage[each.rate * power(terms, _supposed(each, _WHOLE_STAGE))] += number
    return tuple(
        Odds(
            count,
            strangers=undetected(strangers, count),
            friends=undetected(friends, count),
            whole_stage=undetected(stage, count),
        )
        for count in counts
    )


def spelled(stated: Odds) -> dict[str, Any]:
    """The odds for programs, by the names that the API and the audit give them."""
    return {
        "falsified": stated.falsified,
        "strangers": exact(stated.strangers),
        "largest_owner": exact(stated.friends),
        "whole_stage": exact(stated.whole_stage),
    }


def undetected(chances: Chances, count: int) -> Fraction:
    """The chance that none of the `count` smallest chances to be found came true.

    Args:
        chances: Independent ones, each with how many peer-steps have it.
        count: At most as many as there are.
    """
    numerator, denominator = 1, 1
    for chance in sorted(chances):
        number = min(count, chances[chance])
        count -= number
        missed = 1 - chance
        # One reduction at the end: reducing after each of thousands of factors takes seconds.
        numerator *= missed.numerator**number
        denominator *= missed.denominator**number
    return Fraction(numerator, denominator)


def short(chance: Fraction) -> str:
    """`chance` with three digits, rounded up, e.g. `0.0417` or `3.21e-7`."""
    context = Context(prec=_SHOWN_DIGITS, rounding=ROUND_CEILING)
    shown = context.divide(Decimal(chance.numerator), Decimal(chance.denominator))
    if not shown or shown >= Decimal("0.001"):
        return f"{shown:f}"
    mantissa, exponent = f"{shown:.{_SHOWN_DIGITS - 1}e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def exact(chance: Fraction) -> str:
    """`chance` as numerator/denominator; `int(part, 0)` reads both, however long they are."""
    return f"{_integer(chance.numerator)}/{_integer(chance.denominator)}"


def read_exact(text: str) -> Fraction:
    """The chance that `exact` has spelled.

    Raises:
        Malformed: it is none.
    """
    match = _EXACT.fullmatch(text)
    if match is None:
        raise Malformed(f"{text:.80} is no numerator/denominator")
    return Fraction(int(match[1], 0), int(match[2], 0))


def _supposed(peer_step: Exposed, phi: Fraction) -> Fraction | None:
    """`phi`, where there was anybody in the stage to be a friend."""
    return None if peer_step.phi is None else phi


def _integer(number: int) -> str:
    return str(number) if number < 10**_DECIMAL_DIGITS else hex(number)


# --------------------------------------------------------------- what a schedule of cheating earns

SETTLING = 4
"""Steps until a draw is settled: at most so many wait for their coin (docs/protocol.md 4)."""

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
    withholds: bool = False  # when drawn, its data are missing: unvested pay is lost, stake is not
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
    return kept - cost[worked_on] - (0 if game.withholds else game.stake)
