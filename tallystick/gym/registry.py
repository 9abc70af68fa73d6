"""Adversaries by name: `stale:from=3,share=1/3`, or several, `stale:from=3+withheld`.

For demos and tests: only a process with TALLYSTICK_HOOKS=tallystick.gym.hooks may play one.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial, reduce
from typing import Any, TypeAlias

from contracts.terms.errors import WrongConfiguration
from contracts.terms.messages import RulesSpec
from tallystick.gym import behaviours, forged
from tallystick.gym.around import Around, Computing
from tallystick.gym.forged import Forged
from tallystick.gym.lazy import Copied, Half, Junk, Skipped, Stale
from tallystick.gym.plan import Plan, parse
from training.hooks import HookSettings
from training.strategies.port import Compute
from training.worker.ports import HONEST, Behaviour, MakeStrategy

MODULE = "tallystick.gym.hooks"
SLIGHTLY, HUGELY = Fraction(101, 100), Fraction(1000)

Make: TypeAlias = Callable[[Plan, RulesSpec], Behaviour]


def _lying(kind: Callable[..., Around], *what: object) -> Make:
    """A behaviour whose strategy is a `Liar` of this kind, made of `what` beside the rest."""

    def make(plan: Plan, rules: RulesSpec) -> Behaviour:
        return Computing(
            lambda make, compute: kind(make, compute, plan, rules.gradient_codec, *what)
        )

    return make


def _coarse(*args: Any) -> Around:
    from tallystick.gym.coarse import Coarse  # torch: not for every process

    return Coarse(*args)


def _wrong_sum(plan: Plan, rules: RulesSpec) -> Behaviour:
    def around(make: MakeStrategy, compute: Compute) -> Around:
        return forged.WrongSum(make, compute, plan, rules.mean_codec, rules.gradient_codec)

    return Computing(around)


def _local_liar(*args: Any) -> Around:
    from tallystick.gym.local_steps import LocalLiar  # torch, too

    return LocalLiar(*args)


def _huge(plan: Plan, rules: RulesSpec) -> Behaviour:
    """For one step, unless it is told until when."""
    ends = replace(plan, last=plan.first if plan.last is None else plan.last)
    return _lying(Forged, partial(forged.scaled, HUGELY))(ends, rules)


MAKERS: Mapping[str, Make] = {
    "copied": _lying(Copied),
    "stale": _lying(Stale),
    "skipped": _lying(Skipped),
    "half": _lying(Half),
    "junk": _lying(Junk),
    "coarse": _lying(_coarse),
    "flipped": _lying(Forged, forged.flipped),
    "turned": _lying(Forged, forged.turned),
    "scaled": _lying(Forged, partial(forged.scaled, SLIGHTLY)),
    "huge": _huge,
    "wrong_sum": _wrong_sum,
    "left_out": _lying(forged.LeftOut),
    "skipped_step": _lying(_local_liar, "skipped"),
    "stale_rows": _lying(_local_liar, "stale rows"),
    "half_rows": _lying(_local_liar, "half rows"),
    "coarse_weights": _lying(_local_liar, "bf16"),
    "scaled_difference": _lying(_local_liar, "scaled"),
    "copied_difference": _lying(_local_liar, "copied"),
    "false_moments": _lying(_local_liar, "moments"),
    "poisoned_embedding": _lying(_local_liar, "embedding"),
    "poisoned_head": _lying(_local_liar, "head"),
    "withheld": lambda plan, rules: behaviours.Withheld(plan),
    "stalling": lambda plan, rules: behaviours.Stalling(plan),
    "vanishing": lambda plan, rules: behaviours.Vanishing(plan),
    "leaving": lambda plan, rules: behaviours.Leaving(plan),
    "not_finite": _lying(forged.Spoilt, forged.not_finite),
    "oversized": _lying(forged.Spoilt, forged.oversized),
    "not_finite_parts": _lying(Forged, partial(forged.spoilt, forged.not_finite)),
    "oversized_parts": _lying(Forged, partial(forged.spoilt, forged.oversized)),
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
