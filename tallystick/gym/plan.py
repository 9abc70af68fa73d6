"""When does an adversary lie, and about which of its units?

From step `first` to step `last`, about the share `share` of its units, drawn by a seed: the same
plan lies about the same units in every process, also in one that comes after a kill. Whoever lies
in whole peer-steps (gradients, sums) lies in that share of them.
"""

from dataclasses import dataclass
from fractions import Fraction

from contracts.terms.digest import digest
from contracts.terms.errors import WrongConfiguration
from contracts.terms.ids import StepNumber
from contracts.terms.items import ItemNumber

_SPAN = 2**64


@dataclass(frozen=True)
class Plan:
    """See the module."""

    seed: int = 0
    first: int = 1
    last: int | None = None  # None: to the end
    share: Fraction = Fraction(1)

    def covers(self, step: StepNumber) -> bool:
        """Whether `step` is between the first and the last one."""
        return self.first <= step and (self.last is None or step <= self.last)

    def lies_about(self, step: StepNumber, unit: ItemNumber) -> bool:
        """Whether one unit is lied about."""
        return self.covers(step) and self._is_drawn(f"{step} {unit}")

    def lies_in(self, step: StepNumber) -> bool:
        """Whether a peer-step as a whole is."""
        return self.covers(step) and self._is_drawn(f"{step}")

    def _is_drawn(self, name: str) -> bool:
        drawn = digest("gym", f"{self.seed} {name}".encode())
        return int.from_bytes(drawn[:8], "big") < self.share * _SPAN


def parse(text: str) -> tuple[str, Plan]:
    """Read `name` or `name:from=3,until=9,share=1/3,seed=7`, each part once and in any order.

    Raises:
        WrongConfiguration: something else.
    """
    name, _, options = text.partition(":")
    values: dict[str, str] = {}
    for option in filter(None, options.split(",")):
        key, is_given, value = option.partition("=")
        if not is_given or key in values or key not in ("from", "until", "share", "seed"):
            raise WrongConfiguration(
                f"{option!r} of behaviour {name!r}: from=, until=, share= or seed=, each once"
            )
        values[key] = value
    return name, _plan(name, values)


def _plan(name: str, values: dict[str, str]) -> Plan:
    try:
        plan = Plan(
            seed=int(values.get("seed", "0")),
            first=int(values.get("from", "1")),
            last=int(values["until"]) if "until" in values else None,
            share=Fraction(values.get("share", "1")),
        )
    except (ValueError, ZeroDivisionError) as error:
        raise WrongConfiguration(f"behaviour {name!r}: {error}") from error
    if not 0 <= plan.share <= 1:
        raise WrongConfiguration(f"behaviour {name!r}: a share is between 0 and 1")
    return plan
