"""The protocol's numbers: what each means, its unit, its hard bounds. Twin of Parameters.sol. Pure.

Invariants: `PARAMETERS` has the order, the names and the bounds of `Parameters.Key`; values out of
their bounds cannot exist on chain, and are refused here before they are sent.
Units: s = seconds, ppm = 1/1,000,000.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from contracts.terms.errors import Malformed

_DAY = 86_400


@dataclass(frozen=True)
class Parameter:
    """One number of the protocol, with inclusive bounds."""

    name: str
    unit: str
    lowest: int
    highest: int
    meaning: str


PARAMETERS = (
    Parameter("NoticePeriod", "s", 1, 90 * _DAY, "from scheduling a change to its effect"),
    Parameter("AuditFloorPpm", "ppm", 10_000, 10**6, "q floor of a peer-step"),
    Parameter("SumAuditPpm", "ppm", 10_000, 10**6, "q_sum of a bucket"),
    Parameter("RepeatPpm", "ppm", 50_000, 10**6, "r: audits repeated outside"),
    Parameter("MarginPpm", "ppm", 1_050_000, 10**7, "m: above break-even"),
    Parameter("DeadlineSteps", "steps", 1, 64, "D: in which a drawn auditor reports"),
    Parameter("VestingSteps", "steps", 1, 1_000, "W: after which pay vests"),
)
"""All numbers, in the order of `Parameters.Key`."""


def check_values(values: Mapping[str, int]) -> None:
    """Check that a full set of values is one that Parameters.sol accepts.

    Raises:
        Malformed: a name is missing or unknown, or a value is out of bounds.
    """
    if set(values) != {each.name for each in PARAMETERS}:
        raise Malformed("not exactly the protocol's parameters")
    for each in PARAMETERS:
        if not each.lowest <= values[each.name] <= each.highest:
            raise Malformed(
                f"{each.name} is {values[each.name]} {each.unit}, "
                f"allowed are {each.lowest} to {each.highest}"
            )
