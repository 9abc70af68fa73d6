"""The protocol's numbers: what each means, its unit, its hard bounds. Twin of Parameters.sol. Pure.

Invariants: `PARAMETERS` has the order, the names and the bounds of `Parameters.Key`; values out of
their bounds cannot exist on chain, and are refused here before they are sent. The defaults are the
rates of docs/protocol.md 7.
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
    default: int


PARAMETERS = (
    Parameter("notice_period", "s", 1, 90 * _DAY, 20),  # from scheduling a change to its effect
    Parameter("audit_floor_ppm", "ppm", 10_000, 10**6, 50_000),  # q floor of a peer-step
    Parameter("sum_audit_ppm", "ppm", 10_000, 10**6, 100_000),  # q_sum of a bucket
    Parameter("repeat_ppm", "ppm", 50_000, 10**6, 200_000),  # r: audits repeated outside
    Parameter("margin_ppm", "ppm", 1_050_000, 10**7, 1_250_000),  # m: above break-even
    Parameter("deadline_steps", "steps", 1, 64, 4),  # D: in which a drawn auditor reports
    Parameter("vesting_steps", "steps", 1, 1_000, 5),  # W: after which pay vests
)
"""All numbers, in the order of `Parameters.Key`."""


def parameter_values(changes: Mapping[str, int]) -> list[int]:
    """The defaults with `changes`, in the order of `PARAMETERS`, as Parameters.sol accepts them.

    Raises:
        Malformed: a name that is no parameter, or a value out of its bounds.
    """
    names = [each.name for each in PARAMETERS]
    if unknown := sorted(set(changes) - set(names)):
        raise Malformed(f"{unknown[0]!r} is no parameter; there are: {', '.join(names)}")
    values = [changes.get(each.name, each.default) for each in PARAMETERS]
    for each, value in zip(PARAMETERS, values, strict=True):
        if not each.lowest <= value <= each.highest:
            raise Malformed(
                f"{each.name} is {value} {each.unit}, allowed are {each.lowest} to {each.highest}"
            )
    return values
