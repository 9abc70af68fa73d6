"""How likely is it that falsified peer-steps were never seen? Pure.

Undetected means that nobody who would say so has replayed any of them: the product of 1 - q x d
over the falsified peer-steps, as an exact rational from the rates with which the job really drew
them. Three suppositions about who is a friend of the cheat: nobody; the owners whom the caller
names by their part of the eligible auditors; everybody in the stage, so that only outside auditors
who repeat a report see anything. Where nobody in the stage was eligible, an outside auditor comes
first and friends in the stage change nothing. The order of later auditors, in which device classes
count, changes nothing either: by then the work was seen.

A probability is never stated without the volume that it refers to. `stated_odds` supposes that the
cheat chose the peer-steps that are hardest to find. Source: docs/protocol.md 7, issue 5.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from fractions import Fraction
from typing import Any, TypeAlias

from contracts.terms.errors import Malformed
from verification.draws.economics import Terms, power

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


def stated_odds(
    terms: Terms, peer_steps: Sequence[Exposed], volumes: Iterable[int] = VOLUMES
) -> tuple[Odds, ...]:
    """P(undetected) of the peer-steps that are hardest to find: of each volume, and of all.

    What is hardest to find differs between the suppositions, so each has its own choice. A volume
    that the peer did not do says nothing of it, and is left out.
    """
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
        for count in sorted({*volumes, len(peer_steps)})
        if count <= len(peer_steps)
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
