"""Adversaries by name: `stale:from=3,share=1/3`, or several, `stale:from=3+withheld`.

For demos and tests: only a process with TALLYSTICK_HOOKS=tallystick.gym.hooks may play one.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial, reduce
from typing import TypeAlias

from contracts.terms.errors import WrongConfiguration
from contracts.terms.messages import RulesSpec
from tallystick.gym import behaviours, forged
from tallystick.gym.around import Around, Computing
from tallystick.gym.lazy import Copied, Half, Junk, Lazy, Skipped, Stale
from tallystick.gym.plan import Plan, parse
from training.compression.formats import FORMATS
from training.hooks import HookSettings
from training.strategies.port import Strategy
from training.worker.ports import HONEST, Behaviour

MODULE = "tallystick.gym.hooks"
SLIGHTLY, HUGELY = Fraction(101, 100), Fraction(1000)

Make: TypeAlias = Callable[[Plan, RulesSpec], Behaviour]


def _element_bytes(rules: RulesSpec) -> int:
    return FORMATS[rules.gradient_codec].element_bytes


def _lazy(kind: type[Lazy], plan: Plan, rules: RulesSpec) -> Behaviour:
    return Computing(lambda strategy: kind(strategy, plan, _element_bytes(rules)))


def _coarse(plan: Plan, rules: RulesSpec) -> Behaviour:
    def around(strategy: Strategy) -> Around:
        from tallystick.gym.coarse import Coarse  # torch: not for every process

        return Coarse(strategy, plan)

    return Computing(around)


def _spoilt(spoil: forged.Spoil, plan: Plan, rules: RulesSpec) -> Behaviour:
    return Computing(lambda strategy: forged.Spoilt(strategy, plan, spoil))


def _spoilt_parts(spoil: forged.Spoil, plan: Plan, rules: RulesSpec) -> Behaviour:
    return forged.spoilt_parts(plan, rules.gradient_codec, spoil)


def _huge(plan: Plan, rules: RulesSpec) -> Behaviour:
    """For one step, unless it is told until when."""
    ends = replace(plan, last=plan.first if plan.last is None else plan.last)
    return forged.scaled(ends, HUGELY, rules.gradient_codec)


MAKERS: Mapping[str, Make] = {
    "copied": partial(_lazy, Copied),
    "stale": partial(_lazy, Stale),
    "skipped": partial(_lazy, Skipped),
    "half": partial(_lazy, Half),
    "junk": partial(_lazy, Junk),
    "coarse": _coarse,
    "flipped": lambda plan, rules: forged.flipped(plan, _element_bytes(rules)),
    "turned": lambda plan, rules: forged.turned(plan, _element_bytes(rules)),
    "scaled": lambda plan, rules: forged.scaled(plan, SLIGHTLY, rules.gradient_codec),
    "huge": _huge,
    "wrong_sum": lambda plan, rules: forged.WrongSum(plan, _element_bytes(rules)),
    "left_out": lambda plan, rules: forged.LeftOut(plan),
    "withheld": lambda plan, rules: behaviours.Withheld(plan),
    "stalling": lambda plan, rules: behaviours.Stalling(plan),
    "vanishing": lambda plan, rules: behaviours.Vanishing(plan),
    "leaving": lambda plan, rules: behaviours.Leaving(plan),
    "not_finite": partial(_spoilt, forged.not_finite),
    "oversized": partial(_spoilt, forged.oversized),
    "not_finite_parts": partial(_spoilt_parts, forged.not_finite),
    "oversized_parts": partial(_spoilt_parts, forged.oversized),
    "accuser": lambda plan, rules: behaviours.Accuser(plan),
    "accuser_once": lambda plan, rules: behaviours.Accuser(plan, times=1),
    "stamp": lambda plan, rules: behaviours.Stamp(plan),
    "friend": lambda plan, rules: behaviours.Friend(plan),
}
"""Every adversary."""


def plans(text: str) -> list[tuple[Make, Plan]]:
    """What `text` names.

    Raises:
        WrongConfiguration: this process may not play an adversary, or there is none of that name.
    """
    if not text:
        return []
    if HookSettings().hooks != MODULE:
        raise WrongConfiguration(f"an adversary plays only where TALLYSTICK_HOOKS={MODULE} is set")
    found = []
    for name, plan in map(parse, text.split("+")):
        if name not in MAKERS:
            raise WrongConfiguration(f"no behaviour {name!r}: {', '.join(sorted(MAKERS))}")
        found.append((MAKERS[name], plan))
    return found


def behaviour_of(text: str, rules: RulesSpec) -> Behaviour:
    """The behaviour that `text` names, in a job of these rules; honest if it is empty.

    Raises:
        WrongConfiguration: see `plans`.
    """
    made = [make(plan, rules) for make, plan in plans(text)]
    return reduce(behaviours.Together, made) if made else HONEST
