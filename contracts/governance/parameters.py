"""The protocol's numbers: what each means, its unit, its hard bounds. Twin of Parameters.sol. Pure.

Invariants: `PARAMETERS` has the order, the names and the bounds of `Parameters.Key`; values that
break a bound or a relation cannot exist on chain, and are refused here before they are sent.
Units: s = seconds, bps = 1/10,000, ppm = 1/1,000,000, base units = 1e-6 token.
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
    Parameter("ChallengeWindow", "s", 2, 30 * _DAY, "in which an epoch can be objected to"),
    Parameter("MinEpochLength", "s", 1, 7 * _DAY, "between two posted epochs, at least"),
    Parameter("MaxEpochCap", "base units", 10**6, 10**16, "most a job pays per epoch"),
    Parameter("AnnouncementWindow", "s", 2, 30 * _DAY, "from announcing to executing"),
    Parameter("ResponseWindow", "s", 2, 30 * _DAY, "in which a better seal can be shown"),
    Parameter("RefundDelay", "s", 5, 180 * _DAY, "from a job's close to its refund"),
    Parameter("SilenceLimit", "s", 10, 30 * _DAY, "T: without a seal, then anyone may close"),
    Parameter("EpochLength", "s", 1, 30 * _DAY, "nominal settlement period"),
    Parameter("UnbondingDelay", "s", 10, 180 * _DAY, "until stake comes back"),
    Parameter("ExecutionWindow", "s", 10, 30 * _DAY, "in which what was announced is executed"),
    Parameter("MaxSlashBps", "bps", 1, 10_000, "largest part of a stake one slash takes"),
    Parameter("MaxBountyBps", "bps", 0, 2_000, "largest part for the challenger"),
    Parameter("MinBurnBps", "bps", 5_000, 10_000, "smallest part that is burned"),
    Parameter("NoticePeriod", "s", 1, 90 * _DAY, "from scheduling a change to its effect"),
    Parameter("AuditFloorPpm", "ppm", 10_000, 10**6, "q floor of a peer-step"),
    Parameter("SumAuditPpm", "ppm", 10_000, 10**6, "q_sum of a chunk"),
    Parameter("RepeatPpm", "ppm", 50_000, 10**6, "r: audits repeated outside"),
    Parameter("MarginPpm", "ppm", 1_050_000, 10**7, "m: above break-even"),
    Parameter("DeadlineSteps", "steps", 1, 64, "D: in which a drawn auditor reports"),
    Parameter("VestingSteps", "steps", 1, 1_000, "W: after which pay vests"),
)
"""All numbers, in the order of `Parameters.Key`."""


def check_values(values: Mapping[str, int]) -> None:
    """Check that a full set of values is one that Parameters.sol accepts.

    Raises:
        Malformed: a name is missing or unknown, a value is out of bounds, or two do not fit.
    """
    if set(values) != {each.name for each in PARAMETERS}:
        raise Malformed("not exactly the protocol's parameters")
    for each in PARAMETERS:
        if not each.lowest <= values[each.name] <= each.highest:
            raise Malformed(
                f"{each.name} is {values[each.name]} {each.unit}, "
                f"allowed are {each.lowest} to {each.highest}"
            )
    for broken, says in _relations(values):
        if broken:
            raise Malformed(says)


def _relations(values: Mapping[str, int]) -> tuple[tuple[bool, str], ...]:
    settled = values["ResponseWindow"] + values["EpochLength"] + values["ChallengeWindow"]
    shares = values["MaxBountyBps"] + values["MinBurnBps"]
    return (
        (values["RefundDelay"] < settled, "a refund must not come before the last epoch is judged"),
        (values["MinEpochLength"] > values["EpochLength"], "the minimum exceeds the epoch length"),
        (values["NoticePeriod"] < values["EpochLength"], "notice must last an epoch"),
        (shares > 10_000, "bounty and burn exceed the slash"),
    )
